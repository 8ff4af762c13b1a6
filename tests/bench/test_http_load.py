"""The load generator against servers that answer well, badly or not at all. Figures are those a client sees."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from sojourn.bench.exchange import DONE, Endpoint, Recording, exchange
from sojourn.bench.http_load import Load, LoadReport, first_model, run_load
from sojourn.errors import StartupError
from tests.bench.canned_server import HEAD, Canned, chunk, event, reply, serving


def run(canned: Canned, load: Load, limit_s: float = 20.0) -> LoadReport:
    async def main() -> LoadReport:
        async with serving(canned) as endpoint:
            return await run_load(endpoint, "m", load, limit_s=limit_s)

    return asyncio.run(main())


def test_tokens_are_counted_by_usage_and_not_by_events():
    report = run(Canned(reply("a", "bc")), Load(requests=4))
    assert (report.requests, report.failed, report.errors) == (4, 0, [])
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (28, 12, 20)
    assert report.output_tok_s == pytest.approx(20 / report.wall_s)
    assert report.total_tok_s == pytest.approx(48 / report.wall_s)


def test_latencies_are_those_of_events_with_text():
    # Two pieces make an event, so a text comes every 2 pauses; usage and [DONE] follow without text.
    report = run(Canned(reply("a", "b", "c"), pause=0.02), Load(requests=1))
    assert 40 <= report.ttft_ms.p50 < 400
    assert 40 <= report.itl_ms.p50 < 400
    assert report.tpot_ms.p50 == pytest.approx(report.itl_ms.p50 * 2 / 4, rel=0.5)
    assert report.latency_ms.p50 > report.ttft_ms.p50 + 2 * 40


def test_a_reply_whose_only_token_has_no_text_has_a_first_token():
    report = run(Canned(reply("", usage={"prompt_tokens": 3, "completion_tokens": 1})), Load(requests=1))
    assert report.failed == 0
    assert report.ttft_ms.p50 > 0


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        ([b'HTTP/1.1 429 Too Many\r\nContent-Length: 33\r\n\r\n{"error": {"message": "it rains"}}'], "429: "),
        ([HEAD, chunk(event({"error": {"message": "engine died"}})), chunk(b"data: [DONE]\n\n")], "engine died"),
        (reply("a", usage=None), "no usage"),
        (reply("a", done=False), "without [DONE]"),
        ([HEAD, chunk(b"data: {}\n\n")], "broke"),
        ([HEAD, chunk(b"data: nonsense\n\ndata: [DONE]\n\n")], "OpenAI's format"),
        ([b"SSH-2.0-OpenSSH\r\n"], "no HTTP"),
    ],
)
def test_failures_are_counted_with_their_reason(pieces, word):
    report = run(Canned(pieces), Load(requests=2))
    assert (report.requests, report.failed) == (2, 2)
    assert word in report.errors[0]


def test_a_done_that_is_cut_in_two_ends_the_answer():
    body = b"".join(reply("a", "bc"))
    cut = body.index(DONE) + 3
    report = run(Canned([body[:cut], body[cut:]], pause=0.02), Load(requests=1))
    assert (report.failed, report.output_tokens) == (0, 5)


def test_who_leaves_an_answer_saw_its_packets_come_and_finds_its_events():
    async def main() -> Recording:
        async with serving(Canned(reply(*"abcdefghij"), pause=0.01)) as endpoint:
            recording = Recording()
            request = endpoint.request("POST", "/v1/completions", {})
            running = asyncio.create_task(exchange(endpoint, request, 20.0, recording=recording))
            while len(recording.packets) < 6:
                assert not running.done(), "the answer ended before a packet of it was seen"
                await asyncio.sleep(0.001)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            return recording

    recording = asyncio.run(main())
    assert recording.events
    assert not recording.packets


def test_a_server_that_says_nothing_is_given_up():
    report = run(Canned([HEAD], pause=0.5), Load(requests=1), limit_s=0.1)
    assert report.errors == ["no complete answer within 0.1 s"]


def test_concurrency_bounds_the_requests_in_flight():
    canned = Canned(reply("a"), pause=0.01)
    run(canned, Load(requests=9, concurrency=3))
    assert canned.most_at_once == 3


def test_arrivals_do_not_wait_for_answers():
    canned = Canned(reply("a"), pause=0.05)
    report = run(canned, Load(requests=6, concurrency=None, rate=1000))
    assert canned.most_at_once > 1
    assert report.failed == 0


def test_a_request_that_waits_for_a_place_waits_on_the_servers_account():
    # Both arrive at once, one is let in at a time: the second's first token is late by the first's whole answer.
    report = run(Canned(reply("a"), pause=0.02), Load(requests=2, concurrency=1, rate=1000))
    assert report.ttft_ms.max > 1e3 * report.wall_s / 2


def test_the_same_seed_gives_the_same_prompts_and_a_shared_prefix():
    load = Load(requests=3, prompt_words=4, prefix_words=50)
    first, second = Canned(reply("a")), Canned(reply("a"))
    run(first, load)
    run(second, load)
    prompts = [body["prompt"] for body in first.bodies]
    assert prompts == [body["prompt"] for body in second.bodies] == load.prompts()
    assert len({" ".join(prompt.split()[:50]) for prompt in prompts}) == 1
    assert len(set(prompts)) == 3


def test_prompts_without_spread_have_exactly_as_many_words():
    assert {len(prompt.split()) for prompt in Load(requests=5, prompt_words=9, prompt_spread=0).prompts()} == {9}


def test_poisson_arrivals_have_the_rate_asked_for():
    delays = Load(requests=4000, rate=50).delays()
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(4000 / 50, rel=0.1)


def test_the_first_model_is_asked_for_by_default():
    listing = json.dumps({"data": [{"id": "llama"}]}).encode()

    async def main() -> str:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(listing)}\r\n\r\n".encode()
        async with serving(Canned([head + listing])) as endpoint:
            return await first_model(endpoint)

    assert asyncio.run(main()) == "llama"


def test_nobody_at_the_address_is_a_clear_error():
    with pytest.raises(StartupError, match=r"No server answers at http://127\.0\.0\.1:9"):
        asyncio.run(first_model(Endpoint("127.0.0.1", 9)))


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://h:1", Endpoint("h", 1)),
        ("h:2/v1", Endpoint("h", 2)),
        ("https://h/x/v1/", Endpoint("h", 443, "/x", secure=True)),
    ],
)
def test_addresses_are_understood_with_and_without_scheme_and_v1(url, wanted):
    assert Endpoint.parse(url) == wanted


def test_an_address_that_is_none_is_refused():
    with pytest.raises(StartupError, match="no http address"):
        Endpoint.parse("ftp://x")
