"""The official client against a real server: what an OpenAI user sees."""

from __future__ import annotations

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"
HI = [{"role": "user", "content": "hi"}]


def test_chat_answers(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=HI)
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello, world!", "stop")
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == MODEL


def test_chat_usage_counts_prompt_and_completion(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.cached = 2
    usage = client.chat.completions.create(model=MODEL, messages=HI).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 14, 17)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_streamed_chat_gives_the_same_text(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "Hello, world!"


def test_completion_answers(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="a", max_tokens=5)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("Hello", "length")
    assert reply.id.startswith("cmpl-")


def test_streamed_completion_gives_the_same_text(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=100)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello, world!"


def test_every_sampling_field_reaches_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        logit_bias={"5": 3},
        seed=11,
        stop=["x", "y"],
        n=2,
        extra_body={
            "top_k": 4,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "stop_token_ids": [9],
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "min_tokens": 3,
            "skip_special_tokens": False,
            "prompt_logprobs": 1,
            "allowed_token_ids": [72, 101],
            "bad_words": ["no"],
            "cache_salt": "pepper",
            "chat_template_kwargs": {"enable_thinking": False},
            "continue_final_message": True,
        },
    )
    sent = engine.submitted[0]
    params = sent.params
    assert (params.max_tokens, params.min_tokens, params.n, params.seed) == (7, 3, 2, 11)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 4, 0.05)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.1, 0.2, 1.1)
    assert params.logit_bias == {5: 3}
    assert params.allowed_token_ids == (72, 101)
    assert params.stop == ("x", "y")
    assert params.stop_token_ids == (9,)
    assert (params.include_stop_str_in_output, params.ignore_eos, params.skip_special_tokens) == (True, True, False)
    assert params.prompt_logprobs == 1
    assert params.bad_token_ids == (tuple(b"no"), tuple(b" no"))
    assert sent.cache_salt == "pepper"
    rendered = engine.rendered[0]
    assert rendered["template_kwargs"] == {"enable_thinking": False}
    assert (rendered["continue_final_message"], rendered["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]], ["ab", "cd"], [[97], [98, 99]]], ids=str)
def test_completions_take_every_form_of_prompt(client: openai.OpenAI, engine: FakeEngine, prompt: object) -> None:
    reply = client.completions.create(model=MODEL, prompt=prompt)  # type: ignore[arg-type]
    many = isinstance(prompt, list) and not isinstance(prompt[0], int) and len(prompt) > 1
    assert [choice.index for choice in reply.choices] == ([0, 1] if many else [0])
    assert len(engine.submitted) == len(reply.choices)


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client: openai.OpenAI) -> None:
    prompts = ["say:one|", "say:two|"]
    reply = client.completions.create(model=MODEL, prompt=prompts, n=2)
    assert [(c.index, c.text) for c in reply.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    texts = ["", "", "", ""]
    for chunk in client.completions.create(model=MODEL, prompt=prompts, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["one", "one", "two", "two"]


def test_a_model_is_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model", "org/fake"]
    assert client.models.retrieve("org/fake").model_extra["max_model_len"] == 8192  # type: ignore[index]


def test_b58_replies_fit_the_official_models_and_unused_extensions_are_absent(client: openai.OpenAI) -> None:
    chat = client.chat.completions.with_raw_response.create(model=MODEL, messages=HI)
    ChatCompletion.model_validate(chat.http_response.json(), strict=False)
    choice = chat.http_response.json()["choices"][0]
    assert choice["logprobs"] is None
    assert "stop_reason" not in choice
    assert set(choice["message"]) == {"role", "content", "refusal"}
    assert "prompt_logprobs" not in chat.http_response.json()
    completion = client.completions.with_raw_response.create(model=MODEL, prompt="a")
    Completion.model_validate(completion.http_response.json())
    assert set(completion.http_response.json()["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}


def test_chunks_fit_the_official_model(client: openai.OpenAI) -> None:
    for chunk in client.chat.completions.create(model=MODEL, messages=HI, stream=True, logprobs=True, top_logprobs=2):
        ChatCompletionChunk.model_validate(chunk.model_dump())


@pytest.mark.parametrize("stream", [False, True])
def test_b39_n_choices_each_finish_and_the_prompt_counts_once(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        options = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(model=MODEL, messages=HI, n=3, stream=True, stream_options=options)
        )
        usage = chunks[-1].usage
        finishes = [c.choices[0].index for c in chunks if c.choices and c.choices[0].finish_reason]
        assert sorted(finishes) == [0, 1, 2]
    else:
        reply = client.chat.completions.create(model=MODEL, messages=HI, n=3)
        usage = reply.usage
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert {choice.message.content for choice in reply.choices} == {"Hello, world!"}
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 42)


def test_a_stop_string_is_named_as_the_stop_reason(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(model=MODEL, messages=HI, stop=["wor"]).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello, ", "stop")
    assert choice.model_extra == {"stop_reason": "wor"}


def test_b46_the_official_client_raises_its_own_error_classes(client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=HI)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=3)
    assert refused.value.param == "temperature"
    engine.state = "dead"
    with pytest.raises(openai.InternalServerError) as dead:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert dead.value.status_code == 503
