"""What a request may ask for, and what happens at and beyond each bound."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.fake_engine import BOS, CONTEXT, FakeEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(CHAT, json={"messages": MESSAGES, **fields})


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(COMPLETIONS, json={"prompt": "a", **fields})


def refusal(reply: httpx.Response) -> str | None:
    """The field that a 400 names."""
    assert reply.status_code == 400, reply.text
    param: str | None = reply.json()["error"]["param"]
    return param


# -- max_tokens and the context ------------------------------------------------------------------------------------


def test_b30_max_tokens_beyond_the_context_is_clamped(http: httpx.Client, engine: FakeEngine) -> None:
    reply = complete(http, prompt=[97] * (CONTEXT - 28), max_tokens=1_000_000, ignore_eos=True)
    usage = reply.json()["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (28, CONTEXT)
    assert reply.json()["choices"][0]["finish_reason"] == "length"


def test_b30_max_completion_tokens_wins(http: httpx.Client, engine: FakeEngine) -> None:
    chat(http, max_tokens=3, max_completion_tokens=5)
    assert engine.submitted[0].params.max_tokens == 5


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
def test_b31_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(http: httpx.Client, length: int) -> None:
    reply = complete(http, prompt=[97] * length)
    assert refusal(reply) == "prompt"
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert str(length) in reply.json()["error"]["message"]
    assert str(CONTEXT) in reply.json()["error"]["message"]


def test_b31_truncation_is_asked_for_and_shown(http: httpx.Client, engine: FakeEngine) -> None:
    reply = complete(http, prompt=list(b"abcdef"), truncate_prompt_tokens=2)
    assert engine.submitted[0].prompt_ids == list(b"ef")
    assert reply.json()["usage"]["prompt_tokens"] == 2
    assert reply.json()["usage"]["prompt_tokens_details"]["truncated_tokens"] == 4


def test_b31_truncation_to_what_fits(http: httpx.Client, engine: FakeEngine) -> None:
    assert complete(http, prompt=[97] * (CONTEXT + 5), truncate_prompt_tokens=-1).status_code == 200
    assert len(engine.submitted[0].prompt_ids) == CONTEXT - 1


@pytest.mark.parametrize("value", [None, "absent", 1])
def test_b32_max_tokens_that_are_fine(http: httpx.Client, value: Any) -> None:
    fields = {} if value == "absent" else {"max_tokens": value}
    assert chat(http, **fields).status_code == 200
    assert complete(http, **fields).status_code == 200


def test_b32_the_default_is_the_rest_of_the_context_for_chat_and_16_for_completions(
    http: httpx.Client, engine: FakeEngine
) -> None:
    chat(http)
    complete(http)
    assert [sent.params.max_tokens for sent in engine.submitted] == [None, 16]  # None: what the context leaves


@pytest.mark.parametrize("value", [0, -1, 1.5, 10.0, "10", True, [1]])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_b32_max_tokens_that_are_refused(http: httpx.Client, field: str, value: Any) -> None:
    assert refusal(chat(http, **{field: value})) == field
    if field == "max_tokens":
        assert refusal(complete(http, **{field: value})) == field


@pytest.mark.parametrize("logprobs", [None, 2])
def test_b32_echo_with_max_tokens_0_gives_the_prompt_and_nothing_else(http: httpx.Client, logprobs: int | None) -> None:
    reply = complete(http, prompt="abc", max_tokens=0, echo=True, logprobs=logprobs).json()
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert reply["usage"]["completion_tokens"] == 0
    if logprobs is not None:
        assert choice["logprobs"]["tokens"] == ["<s>", "a", "b", "c"]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [[97], []]], ids=str)
def test_b33_an_empty_prompt_is_refused(http: httpx.Client, prompt: Any) -> None:
    assert str(refusal(complete(http, prompt=prompt))).startswith("prompt")


def test_b33_no_messages_are_refused(http: httpx.Client) -> None:
    assert refusal(chat(http, messages=[])) == "messages"


# -- sampling ------------------------------------------------------------------------------------------------------

AT_THE_BOUND = {
    "temperature": [0, 1e-6, 2],
    "top_p": [0, 1],
    "top_k": [-1, 0, 10**9],
    "min_p": [0, 1],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repetition_penalty": [0.01, 2],
    "seed": [0, -1, 2**64 - 1],
    "n": [1, 128],
    "min_tokens": [0, 5],
    "stop": ["x", ["x"] * 16, "x" * 256, []],
    "logit_bias": [{}, {"5": 100}, {str(i % 258): 0 for i in range(258)}],
    "stop_token_ids": [[], [0, 257]],
    "allowed_token_ids": [[0]],
    "bad_words": [[], ["a"] * 256, ["x" * 256]],
    "prompt_logprobs": [0, 20],
    "cache_salt": ["s", "s" * 256],
    "priority": [0],
    "ignore_eos": [False],
    "user": ["someone"],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in AT_THE_BOUND.items() for v in values])
def test_b40_b87_values_at_the_bound_are_served(http: httpx.Client, field: str, value: Any) -> None:
    reply = chat(http, max_tokens=5, **{field: value})
    assert reply.status_code == 200, reply.text


BEYOND = {
    "temperature": [-0.1, 2.01, "1", True, 1e999],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 1.5],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, 101],
    "seed": [2**64, 1.5, "1"],
    "n": [0, -1, 129, 1_000_000],
    "min_tokens": [-1, 6],
    "stop": [["x"] * 17, "x" * 257, "", [""], [1], 5, ["x"] * 1_000_000],
    "logit_bias": [{"5": 101}, {"x": 1}, {"-1": 1}, {"258": 1}, {"5": "1"}, {str(i): 0 for i in range(1025)}, []],
    "stop_token_ids": [[258], [-1], ["1"], [0] * 1025, [True]],
    "allowed_token_ids": [[], [258], [-1]],
    "bad_words": [["a"] * 257, ["x" * 257], [""], "a"],
    "prompt_logprobs": [-1, 21],
    "cache_salt": ["", "s" * 257, 5],
    "priority": [1, -1, 2**40, "1"],
    "stream": ["yes", 1],
    "ignore_eos": [1],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(f, v, id=f"{f}-{i}") for f, values in BEYOND.items() for i, v in enumerate(values)],
)
def test_b40_b87_values_beyond_the_bound_name_their_field(http: httpx.Client, field: str, value: Any) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, field: value}
    if value == float("inf"):
        text = '{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
        reply = http.post(CHAT, content=text, headers={"content-type": "application/json"})
    else:
        reply = http.post(CHAT, json=body)
    assert str(refusal(reply)).startswith(field)


def test_b87_prompts_per_call_are_bounded(http: httpx.Client) -> None:
    assert complete(http, prompt=["a"] * 256, max_tokens=1).status_code == 200
    assert refusal(complete(http, prompt=["a"] * 257, max_tokens=1)) == "prompt"


@pytest.mark.parametrize("prompt", [[258], [-1], [[97], [258]], [1.0], [True], ["a", 97], 5, {"a": 1}], ids=str)
def test_a_prompt_that_is_no_prompt_is_refused(http: httpx.Client, prompt: Any) -> None:
    assert str(refusal(complete(http, prompt=prompt))).startswith("prompt")


def test_null_is_absent(http: httpx.Client, engine: FakeEngine) -> None:
    names = [*AT_THE_BOUND, "stream", "stream_options", "max_completion_tokens", "logprobs", "top_logprobs", "tools"]
    assert chat(http, **dict.fromkeys(names)).status_code == 200
    assert complete(http, **dict.fromkeys([*names, "echo", "suffix", "best_of"])).status_code == 200
    assert engine.submitted[0].params.temperature == 1.0


def test_priority_works_where_the_policy_is_priority(http: httpx.Client, engine: FakeEngine) -> None:
    assert refusal(chat(http, priority=5)) == "priority"
    assert engine.submitted == []


def test_b89_the_salt_reaches_the_engine(http: httpx.Client, engine: FakeEngine) -> None:
    chat(http, cache_salt="pepper")
    chat(http)
    assert [sent.cache_salt for sent in engine.submitted] == ["pepper", ""]


def test_completions_continue_the_prompts_text_and_chats_do_not(http: httpx.Client, engine: FakeEngine) -> None:
    complete(http)
    chat(http)
    assert [sent.continues_text for sent in engine.submitted] == [True, False]


def test_b05_a_chat_that_continues_its_final_message_continues_its_text(http: httpx.Client, engine: FakeEngine) -> None:
    chat(http, continue_final_message=True)
    assert engine.submitted[0].continues_text


def test_special_tokens_are_added_to_a_text_prompt_unless_refused(http: httpx.Client, engine: FakeEngine) -> None:
    complete(http)
    complete(http, add_special_tokens=False)
    assert [sent.prompt_ids for sent in engine.submitted] == [[BOS, 97], [97]]


# -- fields without a feature --------------------------------------------------------------------------------------

NOT_BUILT_CHAT: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a"},
    "guided_json": {"type": "object"},
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "reasoning_effort": "low",
    "verbosity": "low",
    "store": True,
    "service_tier": "flex",
    "chat_template": "{{ messages }}",
    "use_beam_search": True,
    "echo": True,
    "best_of": 2,
    "suffix": "x",
    "return_token_ids": True,
}
DEFAULTS_CHAT: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "verbosity": "medium",
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "metadata": {"a": "b"},
    "prompt_cache_key": "x",
    "foo": 1,
}


@pytest.mark.parametrize(("field", "value"), NOT_BUILT_CHAT.items(), ids=NOT_BUILT_CHAT.keys())
def test_b54_a_field_without_its_feature_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, field: str, value: Any
) -> None:
    assert refusal(chat(http, **{field: value})) == field
    assert engine.submitted == []


@pytest.mark.parametrize(("field", "value"), DEFAULTS_CHAT.items(), ids=DEFAULTS_CHAT.keys())
def test_b54_defaults_and_unknown_fields_are_served(http: httpx.Client, field: str, value: Any) -> None:
    assert chat(http, **{field: value}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"), [("suffix", "x"), ("best_of", 2), ("response_format", {"type": "json_object"})]
)
def test_b54_completions_refuse_by_name_too(http: httpx.Client, field: str, value: Any) -> None:
    assert refusal(complete(http, **{field: value})) == field


def test_b54_best_of_equal_to_n_is_served(http: httpx.Client) -> None:
    assert complete(http, n=2, best_of=2, suffix="").status_code == 200
    assert refusal(complete(http, n=2, best_of=1)) == "best_of"


def test_b54_unknown_keys_inside_messages_are_ignored(http: httpx.Client) -> None:
    assert chat(http, messages=[{"role": "user", "content": "hi", "mood": "good"}]).status_code == 200


def test_prompt_logprobs_in_a_stream_are_refused(http: httpx.Client) -> None:
    assert refusal(chat(http, stream=True, prompt_logprobs=1)) == "prompt_logprobs"


# -- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", "refusal"])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_b55_b88_media_parts_are_refused_by_type(http: httpx.Client, engine: FakeEngine, kind: str, role: str) -> None:
    part = {"type": kind, kind: {"url": "http://127.0.0.1:1/x"}}
    reply = chat(http, messages=[{"role": role, "content": [{"type": "text", "text": "see"}, part]}])
    assert refusal(reply) == "messages[0].content[1].type"
    assert kind in reply.json()["error"]["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "", "content": "x"}, "messages[0].role"),
        ({"role": 1, "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ("text", "messages[0]"),
    ],
)
def test_a_broken_message_is_refused_by_position(http: httpx.Client, message: Any, param: str) -> None:
    assert refusal(chat(http, messages=[message])) == param


def test_text_parts_reach_the_template_as_they_are(http: httpx.Client, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(http, messages=[{"role": "user", "content": parts}])
    assert engine.rendered[0]["messages"][0]["content"] == parts


def test_b05_continuing_with_a_generation_prompt_is_refused(http: httpx.Client, engine: FakeEngine) -> None:
    reply = chat(http, continue_final_message=True, add_generation_prompt=True)
    assert refusal(reply) == "continue_final_message"
    chat(http, continue_final_message=True)
    chat(http, add_generation_prompt=False)
    chat(http)
    flags = [(call["continue_final_message"], call["add_generation_prompt"]) for call in engine.rendered]
    assert flags == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("name", ["chat_template", "messages", "tools", "tokenize", "add_generation_prompt"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_b08_template_arguments_of_the_server_can_not_be_overridden(http: httpx.Client, path: str, name: str) -> None:
    body = {"messages": MESSAGES, "chat_template_kwargs": {name: "x", "enable_thinking": True}}
    assert refusal(http.post(path, json=body)) == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_b08_a_template_in_the_body_is_refused(http: httpx.Client, path: str) -> None:
    assert refusal(http.post(path, json={"messages": MESSAGES, "chat_template": "x"})) == "chat_template"


@pytest.mark.parametrize("value", [True, False])
def test_b06_the_thinking_switch_reaches_the_template_as_given(
    http: httpx.Client, engine: FakeEngine, value: bool
) -> None:
    chat(http, chat_template_kwargs={"enable_thinking": value})
    chat(http)
    assert [call["template_kwargs"] for call in engine.rendered] == [{"enable_thinking": value}, {}]
