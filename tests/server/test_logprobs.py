"""Logprobs in the shape of each endpoint, in one piece and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from sojourn.records import SamplingParams, TokenLogprobs
from sojourn.server.logprobs import ChatLogprobs, CompletionLogprobs
from tests.server.fake_engine import EOS, ByteTokenizer, FakeEngine
from tests.server.streams import stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
B11_TEXT = "日本語 ďábelské 👩‍👩‍👧‍👦 🇨🇦 e\u0301"


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say:{text}|"}]


def chat_content(http: httpx.Client, streamed: bool, **fields: Any) -> list[dict[str, Any]]:
    body = {"logprobs": True, **fields}
    if not streamed:
        entries: list[dict[str, Any]] = http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
        return entries
    chunks = [json.loads(item) for item in stream(http, CHAT, body)[:-1]]
    return [e for c in chunks if c["choices"][0]["logprobs"] for e in c["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize("streamed", [False, True])
def test_b42_chat_logprobs(http: httpx.Client, streamed: bool) -> None:
    entries = chat_content(http, streamed, messages=ask("Hi"), top_logprobs=3)
    assert entries[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "I", "logprob": -2.0, "bytes": [73]},
            {"token": "J", "logprob": -9999.0, "bytes": [74]},
        ],
    }
    assert [entry["token"] for entry in entries] == ["H", "i", "</s>"]


@pytest.mark.parametrize("streamed", [False, True])
def test_b42_without_top_logprobs_the_list_is_empty(http: httpx.Client, streamed: bool) -> None:
    assert [entry["top_logprobs"] for entry in chat_content(http, streamed, messages=ask("Hi"))] == [[], [], []]


def test_b42_top_logprobs_without_logprobs_is_refused(http: httpx.Client) -> None:
    for logprobs in ({}, {"logprobs": False}, {"logprobs": None}):
        reply = http.post(CHAT, json={"messages": ask("x"), "top_logprobs": 1, **logprobs})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "top_logprobs")


@pytest.mark.parametrize(("field", "value"), [("top_logprobs", 21), ("top_logprobs", -1), ("logprobs", 5)])
def test_b87_chat_logprobs_are_bounded(http: httpx.Client, field: str, value: int) -> None:
    reply = http.post(CHAT, json={"messages": ask("x"), "logprobs": True, field: value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert http.post(CHAT, json={"messages": ask("x"), "logprobs": True, "top_logprobs": 20}).status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("skip_special", [False, True])
def test_b19_joined_bytes_are_the_text(http: httpx.Client, streamed: bool, skip_special: bool) -> None:
    entries = chat_content(http, streamed, messages=ask(B11_TEXT), skip_special_tokens=skip_special)
    assert bytes(byte for entry in entries for byte in entry["bytes"] or ()).decode() == B11_TEXT
    assert len({entry["token"] for entry in entries if entry["token"].startswith("bytes:")}) > 10


@pytest.mark.parametrize("streamed", [False, True])
def test_b42_completion_logprobs(http: httpx.Client, streamed: bool) -> None:
    body = {"prompt": "say:a日b|", "logprobs": 2, "max_tokens": 20}
    if streamed:
        lists: dict[str, list[Any]] = {}
        for item in stream(http, COMPLETIONS, body)[:-1]:
            for name, values in json.loads(item)["choices"][0]["logprobs"].items():
                lists.setdefault(name, []).extend(values)
    else:
        lists = http.post(COMPLETIONS, json=body).json()["choices"][0]["logprobs"]
    assert lists["tokens"] == ["a", "bytes:\\xe6", "bytes:\\x97", "bytes:\\xa5", "b", "</s>"]
    assert lists["token_logprobs"] == [-0.5] * 6
    assert lists["text_offset"] == [0, 1, 1, 1, 2, 3]
    assert lists["top_logprobs"][0] == {"a": -0.5, "b": -2.0}


def test_b42_the_sampled_token_always_has_an_entry(http: httpx.Client) -> None:
    reply = http.post(COMPLETIONS, json={"prompt": "say:ab|", "logprobs": 0}).json()
    assert reply["choices"][0]["logprobs"]["top_logprobs"][:2] == [{"a": -0.5}, {"b": -0.5}]


@pytest.mark.parametrize("streamed", [False, True])
def test_echo_puts_the_prompt_and_its_logprobs_first(http: httpx.Client, streamed: bool) -> None:
    body = {"prompt": [[97, 98], [99, 100]], "echo": True, "logprobs": 1, "n": 2, "max_tokens": 2}
    texts, tokens, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)]  # type: ignore[var-annotated]
    if streamed:
        choices = [json.loads(item)["choices"][0] for item in stream(http, COMPLETIONS, body)[:-1]]
    else:
        choices = http.post(COMPLETIONS, json=body).json()["choices"]
    for choice in choices:
        texts[choice["index"]] += choice["text"]
        tokens[choice["index"]] += choice["logprobs"]["tokens"]
        offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert texts == ["abHe", "abHe", "cdHe", "cdHe"]
    assert tokens == [[*"abHe"], [*"abHe"], [*"cdHe"], [*"cdHe"]]
    assert offsets == [[0, 1, 2, 3]] * 4


@pytest.mark.parametrize("streamed", [False, True])
def test_echo_without_logprobs(http: httpx.Client, streamed: bool) -> None:
    body = {"prompt": "say:x|", "echo": True}
    if streamed:
        text = "".join(json.loads(item)["choices"][0]["text"] for item in stream(http, COMPLETIONS, body)[:-1])
    else:
        text = http.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    assert text == "say:x|x"


@pytest.mark.parametrize("logprobs", [None, 1])
def test_b32_echo_of_nothing_but_the_prompt_streams_too(http: httpx.Client, logprobs: int | None) -> None:
    body = {
        "prompt": "ab",
        "echo": True,
        "max_tokens": 0,
        "stream_options": {"include_usage": True},
        "logprobs": logprobs,
    }
    *chunks, usage, _ = stream(http, COMPLETIONS, body)
    (choice,) = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert (choice["logprobs"] or {}).get("tokens") == (None if logprobs is None else ["<s>", "a", "b"])
    assert json.loads(usage)["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_have_vllms_shape(http: httpx.Client) -> None:
    expected = [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    reply = http.post(COMPLETIONS, json={"prompt": [97, 98], "prompt_logprobs": 1}).json()
    assert reply["choices"][0]["prompt_logprobs"] == expected
    reply = http.post(CHAT, json={"messages": [{"role": "user", "content": "b"}], "prompt_logprobs": 1}).json()
    assert reply["prompt_logprobs"] == expected


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("n", {"prompt": [97] * 4000, "n": 128, "prompt_logprobs": 20}),
        ("n", {"prompt": [97] * 4000, "n": 128, "echo": True, "logprobs": 5}),
        ("prompt_logprobs", {"prompt": [[97] * 4000] * 13, "prompt_logprobs": 20}),
    ],
)
def test_b87_the_prompt_logprobs_of_one_reply_are_bounded(
    http: httpx.Client, engine: FakeEngine, field: str, body: dict[str, Any]
) -> None:
    reply = http.post(COMPLETIONS, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert engine.submitted == []
    assert http.post(COMPLETIONS, json={"prompt": [97] * 400, "n": 2, "prompt_logprobs": 20}).status_code == 200


def test_completions_logprobs_are_bounded(http: httpx.Client) -> None:
    for value in (-1, 21, True, 1.5):
        reply = http.post(COMPLETIONS, json={"prompt": "a", "logprobs": value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


def test_b42_the_official_client_reads_both(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="fake-model", messages=ask("Hi"), logprobs=True, top_logprobs=2)  # type: ignore[arg-type]
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert chat.choices[0].logprobs.content[0].top_logprobs[1].token == "I"
    completion = client.completions.create(model="fake-model", prompt="say:Hi|", logprobs=2)
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.text_offset == [0, 1, 2]


def entry(*ids: int) -> TokenLogprobs:
    return TokenLogprobs(-1.0, 1, list(ids), [-1.0] * len(ids))


@pytest.mark.parametrize(
    ("stop_reason", "include", "shown"),
    [(None, False, False), (120, False, False), (120, True, True), ("x", False, True)],
)
def test_the_bytes_of_a_hidden_last_token_are_null(stop_reason: str | int | None, include: bool, shown: bool) -> None:
    params = SamplingParams(include_stop_str_in_output=include)
    shape = ChatLogprobs(ByteTokenizer(), params, top=0)
    entries = shape.content([97, 120], [entry(97), entry(120)], "stop", stop_reason)
    assert (entries[1]["bytes"] is not None) is shown
    assert entries[0]["bytes"] == [97]


def test_two_tokens_of_the_same_text_share_a_key_and_the_likelier_wins() -> None:
    class Twin(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"a"

    shape = CompletionLogprobs(Twin(), top=2, hide_special=True)
    assert shape.lists([5], [TokenLogprobs(-3.0, 2, [4, 5], [-1.0, -3.0])])["top_logprobs"] == [{"a": -1.0}]


def test_special_tokens_take_no_room_in_the_text_when_hidden() -> None:
    hidden = CompletionLogprobs(ByteTokenizer(), top=0, hide_special=True)
    shown = CompletionLogprobs(ByteTokenizer(), top=0, hide_special=False)
    assert hidden.lists([97, EOS, 98], [entry()] * 3)["text_offset"] == [0, 1, 1]
    assert shown.lists([97, EOS, 98], [entry()] * 3)["text_offset"] == [0, 1, 5]
