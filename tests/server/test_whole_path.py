"""HTTP over the real front end, channel, scheduler and sampler; only the model is scripted."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest

from sojourn.config import FrontendConfig, ServerConfig
from sojourn.executor.scripted import Line
from sojourn.frontend.async_llm import AsyncLLM
from sojourn.timeline.finished import View
from sojourn.timeline.recorder import Recorder
from tests.frontend.byte_tokenizer import byte_ids, word_ids
from tests.frontend.llms import scripted
from tests.server.conftest import Live, running, wait_for
from tests.server.streams import check_complete, events
from tests.server.test_disconnects import send
from tests.server.test_operation import samples

PATH = "/v1/completions"
UNICODE = "日本語 ďábelské 👩‍👩‍👧‍👦 🇨🇦 e\u0301"
LINES = [
    Line(prompt=byte_ids("unicode:"), tokens=byte_ids(UNICODE)),
    Line(prompt=byte_ids("words:"), tokens=word_ids("alpha", " be", "ta", " gam", "ma", " delta")),
    Line(prompt=byte_ids("nan:"), tokens=byte_ids("never seen"), nan_at=3),
]
ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


@contextlib.contextmanager
def serving(
    lines: Sequence[Line] = LINES,
    *,
    recorder: Recorder | None = None,
    config: ServerConfig | None = None,
    views: Sequence[View] = (),
    **options: Any,
) -> Iterator[tuple[Live, httpx.Client]]:
    recorder = recorder or Recorder()

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[AsyncLLM]:
        async with scripted(lines, recorder=recorder, **options) as (llm, _):
            yield llm

    with (
        running(None, config, around=around(), recorder=recorder, views=views) as live,
        httpx.Client(base_url=live.url, timeout=30, trust_env=False) as http,
    ):
        wait_for(lambda: http.get("/ready").status_code == 200)
        yield live, http


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(engine_options={"num_blocks": 256}) as (_, client):
        yield client


def streamed(http: httpx.Client, body: dict[str, Any]) -> list[str]:
    reply = http.post(PATH, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


def metric(http: httpx.Client, *name: str) -> float:
    return samples(http.get("/metrics").text)["sojourn_" + name[0], *name[1:]]


def test_b11_streamed_text_is_whole_code_points_and_equals_the_reply_in_one_piece(http: httpx.Client) -> None:
    body = {"prompt": "unicode:", "max_tokens": 200, "temperature": 0}
    whole = http.post(PATH, json=body).json()["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (UNICODE, "stop")
    assert check_complete(streamed(http, body), n=1, include_usage=False, chat=False) == [UNICODE]


def test_b13_a_stop_string_over_token_borders_ends_both_modes_alike(http: httpx.Client) -> None:
    body = {"prompt": "words:", "max_tokens": 50, "temperature": 0, "stop": ["ta gam"]}
    whole = http.post(PATH, json=body).json()
    data = streamed(http, {**body, "stream_options": {"include_usage": True}})
    assert check_complete(data, n=1, include_usage=True, chat=False) == ["alpha be"]
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("alpha be", "stop", "ta gam")
    usage = json.loads(data[-2])["usage"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 4


def test_b15_an_unmatched_stop_string_makes_no_empty_chunks(http: httpx.Client) -> None:
    body = {"prompt": "unicode:", "max_tokens": 200, "temperature": 0, "stop": ["x" * 200]}
    assert check_complete(streamed(http, body), n=1, include_usage=False, chat=False) == [UNICODE]


@pytest.mark.parametrize("stream", [False, True])
def test_b41_a_nan_fails_its_own_request_only(http: httpx.Client, stream: bool) -> None:
    body = {"prompt": "nan:", "max_tokens": 50, "temperature": 0}
    if stream:
        data = streamed(http, body)
        assert json.loads(data[-1])["error"]["code"] == "request_failed"
        assert "[DONE]" not in data
    else:
        reply = http.post(PATH, json=body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
    assert http.post(PATH, json={"prompt": "words:", "max_tokens": 2}).status_code == 200


def test_b39_choices_under_a_seed_are_distinct_and_reproducible() -> None:
    with serving([], script={"max_model_len": 256}) as (_, http):
        body = {"prompt": "any", "n": 4, "seed": 1, "temperature": 2.0, "max_tokens": 8}
        body["allowed_token_ids"] = list(range(40, 90))
        first, second = (http.post(PATH, json=body).json() for _ in range(2))
        texts = [choice["text"] for choice in first["choices"]]
        assert texts == [choice["text"] for choice in second["choices"]]
        assert len(set(texts)) == 4
        assert first["usage"]["prompt_tokens"] == 3
        assert first["usage"]["completion_tokens"] == 32


def test_echo_with_logprobs_covers_the_prompt(http: httpx.Client) -> None:
    body = {"prompt": "words:", "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
    for choice in (
        http.post(PATH, json=body).json()["choices"][0],
        json.loads(streamed(http, {**body, "max_tokens": 0})[0])["choices"][0],
    ):
        assert choice["logprobs"]["tokens"][:6] == [*"words:"]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert choice["text"].startswith("words:")


def test_chat_without_a_template_names_the_flag(http: httpx.Client) -> None:
    reply = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert reply.status_code == 400
    assert "--chat-template" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_b34_a_disconnect_frees_the_blocks(stream: bool) -> None:
    options = {"engine_options": {"num_blocks": 1024}, "script": {"seconds_per_step": 0.002}}
    with serving(**options) as (live, http):  # type: ignore[arg-type]
        raw = send(live, PATH, {"prompt": "x", "stream": stream, **ENDLESS})
        wait_for(lambda: metric(http, "num_requests_running") == 1)
        raw.close()
        wait_for(lambda: metric(http, "num_requests_running") == 0, seconds=1.5)
        assert metric(http, "kv_blocks", "live") == 0
        assert metric(http, "requests_aborted_total") == 1
        blocks = [metric(http, "kv_blocks", state) for state in ("live", "cached", "free")]
        assert sum(blocks) == 1024


def test_b35_a_request_cancelled_in_the_queue_never_runs() -> None:
    options: dict[str, Any] = {
        "max_num_seqs": 1,
        "engine_options": {"num_blocks": 1024},
        "script": {"seconds_per_step": 0.002},
    }
    with serving(**options) as (live, http):
        running_one = send(live, PATH, {"prompt": "x", **ENDLESS})
        wait_for(lambda: metric(http, "num_requests_running") == 1)
        queued = send(live, PATH, {"prompt": "y" * 100, **ENDLESS})
        wait_for(lambda: metric(http, "num_requests_waiting", "seq_slots") == 1)
        queued.close()
        wait_for(lambda: metric(http, "num_requests_waiting", "seq_slots") == 0, seconds=1.5)
        assert metric(http, "num_requests_running") == 1
        assert metric(http, "prompt_tokens_total") == 1
        running_one.close()


def test_b65_beyond_the_queue_bound_is_429_and_the_accepted_ones_are_unharmed() -> None:
    options: dict[str, Any] = {
        "max_num_seqs": 1,
        "frontend": FrontendConfig(max_num_queued_reqs=3),
        "engine_options": {"num_blocks": 1024},
        "script": {"seconds_per_step": 0.002},
    }
    body = {"prompt": "words:", "max_tokens": 6, "temperature": 0}
    with serving(**options) as (live, http), concurrent.futures.ThreadPoolExecutor(20) as pool:
        running_one = send(live, PATH, {"prompt": "x", **ENDLESS})
        wait_for(lambda: metric(http, "num_requests_running") == 1)
        accepted = [pool.submit(http.post, PATH, json=body) for _ in range(3)]
        wait_for(lambda: metric(http, "num_requests_waiting", "seq_slots") == 3)
        refused = list(pool.map(lambda _: http.post(PATH, json=body), range(17)))
        assert {(reply.status_code, reply.json()["error"]["code"]) for reply in refused} == {(429, "queue_full")}
        assert all(int(reply.headers["retry-after"]) > 0 for reply in refused)
        running_one.close()
        assert {future.result().json()["choices"][0]["text"] for future in accepted} == {"alpha beta gamma delta"}
        assert http.post(PATH, json={**body, "n": 5}).status_code == 400  # can never fit, so a retry makes no sense


def test_b31_a_prompt_beyond_hope_is_refused_unless_it_may_be_cut(http: httpx.Client) -> None:
    body = {"prompt": "x" * 100_000, "max_tokens": 1}
    refused = http.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    usage = http.post(PATH, json={**body, "truncate_prompt_tokens": 10}).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["truncated_tokens"]) == (10, 99_990)


@pytest.mark.parametrize(
    ("field", "body"), [("prompt", {"prompt": ["a"] * 20}), ("n", {"prompt": ["a"] * 5, "n": 2}), ("n", {"n": 9})]
)
def test_b65_more_choices_than_the_server_ever_holds_is_400_and_not_a_full_queue(
    field: str, body: dict[str, Any]
) -> None:
    with serving(max_num_seqs=4, frontend=FrontendConfig(max_num_queued_reqs=4)) as (_, http):
        reply = http.post(PATH, json={"prompt": "a", "max_tokens": 1, **body})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
        assert http.post(PATH, json={"prompt": ["a"] * 4, "n": 2, "max_tokens": 1}).status_code == 200
