"""The official client against a whole server: every field this version supports, streamed and not (acceptance 7)."""

from __future__ import annotations

from typing import Any

import openai
import pytest

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about rivers."}]
GREEDY: dict[str, Any] = {"model": "micro", "temperature": 0, "seed": 5}


def chat_stream(client: openai.OpenAI, **body: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Text and finish reason by choice index, and the usage."""
    text: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(stream=True, stream_options=options, messages=MESSAGES, **body):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                assert choice.index not in reasons, "a second finish reason"
                reasons[choice.index] = choice.finish_reason
    return text, reasons, usage


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_completion_tokens": 9},
        {"n": 3, "temperature": 1.2},
        {"temperature": 0.7, "top_p": 0.8, "extra_body": {"top_k": 40, "min_p": 0.01}},
        {"presence_penalty": 0.5, "frequency_penalty": 0.5, "extra_body": {"repetition_penalty": 1.2}},
        {"logit_bias": {"300": 5, "301": -100}},
        {"extra_body": {"min_tokens": 5, "ignore_eos": True}},
        {"extra_body": {"allowed_token_ids": [300, 301, 302]}},
        {"extra_body": {"bad_words": ["the", "a"], "stop_token_ids": [400]}},
        {"extra_body": {"skip_special_tokens": False, "cache_salt": "mine"}},
    ],
    ids=lambda body: ",".join([*body, *body.get("extra_body", {})]) or "plain",
)
def test_a_chat_says_the_same_streamed_and_not(client: openai.OpenAI, body: dict[str, Any]) -> None:
    body = {**GREEDY, "max_tokens": 24, **body} if "max_completion_tokens" not in body else {**GREEDY, **body}
    whole = client.chat.completions.create(messages=MESSAGES, **body)
    text, reasons, usage = chat_stream(client, **body)
    assert [choice.index for choice in whole.choices] == list(range(body.get("n", 1)))
    assert text == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_b39_choices_differ_and_repeat_with_a_seed(client: openai.OpenAI) -> None:
    body = {**GREEDY, "n": 4, "temperature": 1.5, "max_tokens": 16}
    replies = [client.chat.completions.create(messages=MESSAGES, **body) for _ in range(2)]
    texts = [[choice.message.content for choice in reply.choices] for reply in replies]
    assert len(set(texts[0])) == 4
    assert texts[0] == texts[1]
    assert replies[0].usage is not None
    assert replies[0].usage.completion_tokens <= 64


def test_b13_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    body = {**GREEDY, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    full = client.chat.completions.create(messages=MESSAGES, **body).choices[0].message.content or ""
    stop = full[len(full) // 2 : len(full) // 2 + 4]
    expected = full[: full.index(stop)]
    whole = client.chat.completions.create(messages=MESSAGES, stop=[stop, "never there"], **body)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (expected, "stop")
    text, reasons, usage = chat_stream(client, stop=stop, **body)
    assert (text[0], reasons[0]) == (expected, "stop")
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens < 40


def test_b19_the_bytes_of_logprobs_join_to_the_text(client: openai.OpenAI) -> None:
    body = {**GREEDY, "temperature": 1.0, "max_tokens": 40, "logprobs": True, "top_logprobs": 3}
    reply = client.chat.completions.create(messages=MESSAGES, extra_body={"ignore_eos": True}, **body).choices[0]
    assert reply.logprobs is not None
    entries = reply.logprobs.content or []
    assert len(entries) == 40
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    joined = b"".join(bytes(entry.bytes or ()) for entry in entries)
    assert joined.decode(errors="replace") == reply.message.content


def test_completions_take_every_kind_of_prompt(client: openai.OpenAI) -> None:
    body = {**GREEDY, "max_tokens": 6}
    one = client.completions.create(prompt="A river", **body)
    ids = client.post("/../tokenize", body={"model": "micro", "prompt": "A river"}, cast_to=object)
    tokens = ids["tokens"]  # type: ignore[index]
    for prompt in (tokens, [tokens], ["A river"]):
        again = client.completions.create(prompt=prompt, **body)
        assert again.choices[0].text == one.choices[0].text
    several = client.completions.create(prompt=["A river", tokens, "A lake"], n=2, **body)  # type: ignore[list-item]
    assert [choice.index for choice in several.choices] == list(range(6))
    assert several.choices[0].text == several.choices[2].text == one.choices[0].text


def test_completions_say_the_same_streamed_and_not(client: openai.OpenAI) -> None:
    body = {**GREEDY, "prompt": ["A river", "A lake"], "max_tokens": 12, "echo": True, "logprobs": 2}
    whole = client.completions.create(**body)
    text = {0: "", 1: ""}
    tokens: dict[int, list[str]] = {0: [], 1: []}
    for chunk in client.completions.create(stream=True, **body):
        for choice in chunk.choices:
            text[choice.index] += choice.text
            tokens[choice.index] += (choice.logprobs.tokens or []) if choice.logprobs else []
    for choice in whole.choices:
        assert choice.text == text[choice.index]
        assert choice.text.startswith(("A river", "A lake"))
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == tokens[choice.index]
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[0] is None
        assert len(choice.logprobs.text_offset or []) == len(choice.logprobs.tokens or [])


def test_b32_echo_alone_scores_a_prompt_and_generates_nothing(client: openai.OpenAI) -> None:
    reply = client.completions.create(prompt="A river runs", max_tokens=0, echo=True, logprobs=1, model="micro")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("A river runs", "length")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 0
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.tokens or []) == reply.usage.prompt_tokens


def test_prompt_logprobs_cover_the_prompt(client: openai.OpenAI) -> None:
    reply = client.completions.create(prompt="A river", max_tokens=1, model="micro", extra_body={"prompt_logprobs": 2})
    assert reply.usage is not None
    entries = reply.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert len(entries) == reply.usage.prompt_tokens
    assert entries[0] is None
    assert all(2 <= len(entry) <= 3 for entry in entries[1:])


def test_b28_the_reply_says_how_much_of_the_prompt_was_cached(client: openai.OpenAI) -> None:
    body = {**GREEDY, "prompt": "a long way down the river " * 12, "max_tokens": 1}
    first, second = (client.completions.create(extra_body={"cache_salt": "b28"}, **body) for _ in range(2))
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == (second.usage.prompt_tokens - 1) // 32 * 32 > 0


def test_models_names_the_model_and_its_context(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "micro"
    assert model.max_model_len == 2048  # type: ignore[attr-defined]
    assert client.models.retrieve("micro").id == "micro"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"extra_body": {"structured_outputs": {"regex": "a+"}}},
        {"extra_body": {"chat_template": "{{ x }}"}},
        {"extra_body": {"priority": 3}},
        {"temperature": 3},
        {"n": 129},
        {"top_logprobs": 2},
        {"messages": []},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1"}}]}
            ]
        },
    ],
    ids=str,
)
def test_what_is_not_built_or_out_of_range_is_refused(client: openai.OpenAI, body: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"messages": MESSAGES, "model": "micro", **body})
    assert refused.value.param
    assert client.chat.completions.create(messages=MESSAGES, model="micro", max_tokens=1).choices
