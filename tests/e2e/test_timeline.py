"""The record of a request over real HTTP and two processes: what the reply says, what /v1/requests says, what the
engine did."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import MICRO, Gauges
from tests.server.streams import events
from tests.servers import Server

TEXT = "a prompt that must not be kept "


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url(), timeout=60, trust_env=False) as client:
        yield client


def record_of(http: httpx.Client, request_id: str) -> dict[str, Any]:
    """Once it is complete: the engine reports the end of a request with its next message."""
    for _ in range(500):
        document: dict[str, Any] = http.get(f"/v1/requests/{request_id}").json()
        if (
            document["state"] not in {"receiving", "queued", "running"}
            and document["kv_blocks"]["at_finish"] is not None
        ):
            return document
    raise AssertionError(f"it never ended: {document}")


def adds_up(account: dict[str, Any]) -> None:
    microseconds = [round(1000 * part) for part in account["parts"].values()]
    assert min(microseconds) >= 0
    assert sum(microseconds) + round(1000 * account["unattributed_ms"]) == round(1000 * account["total_ms"])


def chat(http: httpx.Client, **options: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": TEXT * 4}], "max_tokens": 6, "temperature": 0, "seed": 1}
    reply = http.post("/v1/chat/completions", json=body | options)
    assert reply.status_code == 200, reply.text
    return reply


def test_b69_a_reply_in_one_piece_has_its_account_in_the_header_and_in_the_body(http: httpx.Client) -> None:
    reply = chat(http, timings=True)
    body = reply.json()
    entries = dict(entry.split(";dur=") for entry in reply.headers["server-timing"].split(", "))
    assert {"receive", "render", "prefill", "total"} <= set(entries)
    record = record_of(http, body["id"])
    timings = body["timings"]
    for account in (timings["ttft"], timings["e2e"], record["ttft"], record["e2e"]):
        adds_up(account)
    assert timings["ttft"] == record["ttft"]
    assert timings["ttft"]["parts"]["stream"] == 0
    assert timings["prompt_n"] + timings["cache_n"] == body["usage"]["prompt_tokens"] == record["prompt_tokens"]
    assert timings["predicted_n"] == body["usage"]["completion_tokens"] == record["completion_tokens"]
    names = {"prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"}
    assert names <= set(timings)
    assert timings["prompt_ms"] == record["e2e"]["parts"]["prefill"]
    assert record["client_request_id"] == reply.headers["x-request-id"]


def test_b69_a_stream_has_its_account_in_the_last_chunk_only_if_asked(http: httpx.Client) -> None:
    plain = events(chat(http, stream=True).text)
    assert not any("timings" in chunk for chunk in plain)
    data = events(chat(http, stream=True, timings=True, stream_options={"include_usage": True}).text)
    assert [("timings" in chunk) for chunk in data] == [False] * (len(data) - 2) + [True, False]
    last = json.loads(data[-2])
    assert last["choices"] == []
    assert last["timings"]["predicted_n"] == last["usage"]["completion_tokens"]
    record = record_of(http, last["id"])
    assert last["timings"]["ttft"] == record["ttft"]
    assert record["stream"]["writes"] >= 2


def test_what_the_record_says_of_steps_and_tokens_is_what_the_engine_did(http: httpx.Client) -> None:
    body = chat(http, max_tokens=12).json()
    record = record_of(http, body["id"])
    prefill = [step for step in record["steps"] if step["kind"] == "prefill"]
    assert sum(step["tokens"] for step in prefill) + record["cached_tokens"] == record["prompt_tokens"]
    assert len(record["token_times_ms"]) == record["completion_tokens"] == len(record["itl_ms"]) + 1
    steps = {step["step"]: step for step in http.get("/v1/steps?limit=5000").json()["data"]}
    for step in record["steps"]:
        shared = next(share for share in steps[step["step"]]["requests"] if share["id"] == body["id"])
        assert (shared["kind"], shared["from"], shared["tokens"]) == (step["kind"], step["from"], step["tokens"])
        assert steps[step["step"]]["start_ms"] == pytest.approx(record["received_ms"] + step["start_ms"], abs=0.002)
    for step in steps.values():
        assert sum(step["kv"].values()) == 160
        assert sum(step["parts"].values()) == pytest.approx(step["duration_ms"], abs=0.01)
    names = [station["name"] for station in record["stations"]]
    assert (names[0], names[-1]) == ("receive", "finish")
    starts = [station["start_ms"] for station in record["stations"]]
    assert starts == sorted(starts)


def test_the_prefix_tells_whose_blocks_were_used(http: httpx.Client) -> None:
    prompt = "shared words " * 30
    first = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).json()
    second = http.post("/v1/completions", json={"prompt": prompt + "and more", "max_tokens": 2}).json()
    record = record_of(http, second["id"])
    assert record["prefix"]["from_request"] == first["id"]
    assert record["prefix"]["hit_tokens"] == record["cached_tokens"] == 32 * record["prefix"]["hit_blocks"] > 0
    blocks = [block["state"] for block in record["prefix"]["blocks"]]
    assert blocks == ["hit"] * record["prefix"]["hit_blocks"] + ["computed"] * (len(blocks) - blocks.count("hit"))
    assert record["kv_blocks"]["peak"] == record["kv_blocks"]["at_finish"] == len(blocks)


def test_several_choices_share_one_record(http: httpx.Client) -> None:
    body = http.post("/v1/completions", json={"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "seed": 4}).json()
    record = record_of(http, body["id"])
    assert [choice["index"] for choice in record["choices"]] == [0, 1, 2, 3]
    assert {choice["finish_reason"] for choice in record["choices"]} <= {"length", "stop"}
    adds_up(record["e2e"])


def test_a_refused_request_is_on_record(http: httpx.Client) -> None:
    reply = http.post("/v1/completions", json={"prompt": "x", "temperature": 9})
    assert reply.status_code == 400
    (record, *_) = http.get("/v1/requests?state=failed&limit=1").json()["data"]
    assert (record["status"], record["error"]) == (400, "invalid_value")
    assert record["client_request_id"] == reply.headers["x-request-id"]
    assert record["stations"][0]["name"] == "receive"
    adds_up(record["e2e"])


@pytest.mark.parametrize("query", ["state=nonsense", "limit=0", "limit=100000", "since=now"])
def test_a_wrong_question_is_a_400(http: httpx.Client, query: str) -> None:
    reply = http.get(f"/v1/requests?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, f"query.{query.partition('=')[0]}")


def test_an_unknown_id_is_a_404(http: httpx.Client) -> None:
    assert http.get("/v1/requests/chatcmpl-none").status_code == 404


def test_pages_of_requests(http: httpx.Client) -> None:
    for _ in range(3):
        chat(http, max_tokens=1)
    page = http.get("/v1/requests?limit=2").json()
    assert page["has_more"]
    newest, older = page["data"]
    assert newest["received_ms"] > older["received_ms"]
    assert "steps" not in newest
    since = http.get(f"/v1/requests?since={older['received_ms']}").json()
    assert [record["request_id"] for record in since["data"]] == [newest["request_id"]]


def test_an_aborted_request_has_the_state_in_which_its_client_left(
    client: openai.OpenAI, http: httpx.Client, gauges: Gauges
) -> None:
    stream = client.completions.create(
        model="micro", prompt="x", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    request_id = next(iter(stream)).id
    stream.close()
    gauges.until(lambda now: now("num_requests_running") == 0, seconds=10)
    record = record_of(http, request_id)
    assert (record["state"], record["state_when_left"]) == ("aborted", "running")
    adds_up(record["e2e"])
    adds_up(record["ttft"])


def test_text_is_kept_nowhere(http: httpx.Client) -> None:
    body = chat(http).json()
    assert "text" not in record_of(http, body["id"])
    for path in (f"/v1/requests/{body['id']}", "/v1/requests", "/v1/steps"):
        assert TEXT.strip() not in http.get(path).text


def test_the_system_tells_where_each_setting_comes_from(http: httpx.Client) -> None:
    system = http.get("/v1/system").json()
    found = {setting["name"]: (setting["value"], setting["source"]) for setting in system["configuration"]}
    assert found["num_kv_blocks"] == (160, "flag")
    assert found["block_size"] == (32, "default")
    assert system["kv"] == {"num_blocks": 160, "block_size": 32}
    assert system["memory"]["resident_bytes"] > 2**24
    stages = {stage["name"]: stage for stage in system["startup"]}
    assert {"import the server", "find the model", "start the engine", "load tokenizer and template"} <= set(stages)
    assert all(stage["start_ms"] >= 0 <= stage["duration_ms"] for stage in stages.values())


def test_events_begin_with_everything_and_go_on_with_what_changes(http: httpx.Client) -> None:
    with http.stream("GET", "/v1/events") as feed:
        frames = read_frames(feed)
        name, snapshot = next(frames)
        assert name == "snapshot"
        assert len(snapshot["kv"]["blocks"]) == 160
        assert snapshot["system"]["model"] == "micro"
        request_id = chat(http, max_tokens=40, ignore_eos=True).json()["id"]
        states: list[str] = []
        steps: list[int] = []
        blocks: dict[int, str] = {}
        while "finished" not in states:
            name, delta = next(frames)
            assert name == "delta"
            states += [record["state"] for record in delta["requests"] if record["request_id"] == request_id]
            steps += [step["step"] for step in delta["steps"]]
            blocks |= {block: state for block, state, _ in delta["kv"]["changes"]}
            assert sum(delta["kv"][state] for state in ("live", "cached", "free")) == 160
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert snapshot["steps"][-1]["step"] == steps[0] - 1
        assert set(blocks.values()) <= {"live", "shared", "cached", "free"}


def read_frames(feed: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = feed.iter_lines()
    for line in lines:
        if line.startswith("event: "):
            yield line.removeprefix("event: "), json.loads(next(lines).removeprefix("data: "))


def test_a_server_that_keeps_no_records_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_RECORDS", "0")
    running = Server(str(MICRO), "--served-model-name", "micro", "--num-kv-blocks", "64", "--no-restart")
    with contextlib.ExitStack() as stack:
        stack.callback(running.kill)
        http = stack.enter_context(httpx.Client(base_url=running.url(), timeout=60, trust_env=False))
        assert "server-timing" not in chat(http).headers
        for path in ("/v1/requests", "/v1/requests/x", "/v1/steps", "/v1/events"):
            reply = http.get(path)
            assert (reply.status_code, "SOJOURN_RECORDS" in reply.text) == (404, True)
        reply = http.post("/v1/completions", json={"prompt": "x", "timings": True})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "timings")
