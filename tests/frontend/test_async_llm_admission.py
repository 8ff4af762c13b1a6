"""What is refused at the call, and what happens to everybody else."""

from __future__ import annotations

import asyncio
import time

import pytest

from sojourn.config import FrontendConfig
from sojourn.errors import ContextLengthExceeded, InvalidRequest, QueueFull, RequestTimeout, Unavailable
from sojourn.executor.scripted import Line
from tests.frontend.byte_tokenizer import VOCAB_SIZE, byte_ids
from tests.frontend.llms import PROMPT, collect, make_llm, run, scripted, submit, until

ENDLESS = {"ignore_eos": True, "max_tokens": 2000}
SLOW = {"seconds_per_step": 0.01}
BIG = {"num_blocks": 1024}


def refused(kind, match, **options):
    async def scenario():
        async with scripted() as (llm, _):
            with pytest.raises(kind, match=match) as caught:
                submit(llm, **options)
            assert llm.num_in_flight == 0
            await collect(submit(llm, max_tokens=2))  # a plain request is answered as before
            return caught.value

    errors = []

    async def keep():
        errors.append(await scenario())

    run(keep())
    return errors[0]


def test_b33_an_empty_prompt_is_refused():
    assert refused(InvalidRequest, "no tokens", prompt_ids=[]).param == "prompt"


def test_b31_a_prompt_that_does_not_fit_is_refused_with_both_numbers():
    error = refused(ContextLengthExceeded, r"\b256 tokens.*at most 255 tokens.*256", prompt_ids=[5] * 256)
    assert error.code == "context_length_exceeded"


def test_the_longest_prompt_that_fits_is_served():
    async def scenario():
        async with scripted() as (llm, _):
            reply = (await collect(submit(llm, prompt_ids=[5] * 255, max_tokens=None)))[0]
            assert (len(reply.token_ids), reply.finish_reason) == (1, "length")

    run(scenario())


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_b30_max_tokens_is_cut_to_the_context(max_tokens):
    async def scenario():
        async with scripted() as (llm, _):
            stream = submit(llm, prompt_ids=[5] * 200, max_tokens=max_tokens, min_tokens=100)
            reply = (await collect(stream))[0]
            assert (len(reply.token_ids), reply.finish_reason) == (56, "length")

    run(scenario())


@pytest.mark.parametrize(
    ("param", "options"),
    [
        ("prompt", {"prompt_ids": [1, VOCAB_SIZE]}),
        ("prompt", {"prompt_ids": [-1, 1]}),
        ("prompt", {"prompt_ids": [2**70]}),
        ("logit_bias", {"logit_bias": {VOCAB_SIZE: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": (-1,)}),
        ("stop_token_ids", {"stop_token_ids": (2**70,)}),
        ("bad_words", {"bad_token_ids": ((1, VOCAB_SIZE),)}),
        ("priority", {"priority": 2**31}),
        ("cache_salt", {"cache_salt": "x" * 257}),
    ],
)
def test_values_the_engine_cannot_hold_are_refused_by_name(param, options):
    assert refused(InvalidRequest, param, **options).param == param


def test_b30_counts_larger_than_the_line_can_carry_mean_no_limit():
    async def scenario():
        async with scripted() as (llm, _):
            stream = submit(llm, prompt_ids=[5] * 250, max_tokens=10**30, min_tokens=10**25, top_k=10**30)
            reply = (await collect(stream))[0]
            assert (len(reply.token_ids), reply.finish_reason) == (6, "length")

    run(scenario())


def test_a_request_that_cannot_be_sent_leaves_nothing_behind():
    async def scenario():
        async with scripted() as (llm, _):
            with pytest.raises(UnicodeEncodeError):
                submit(llm, cache_salt="\ud800")
            assert llm.num_in_flight == 0
            await collect(submit(llm, max_tokens=2))
            await llm.drain(1.0)

    run(scenario())


def test_b65_the_queue_is_bounded_in_choices():
    async def scenario():
        frontend = FrontendConfig(max_num_queued_reqs=2)
        async with scripted(frontend=frontend, max_num_seqs=2, script=SLOW, engine_options=BIG) as (llm, _):
            streams = [submit(llm, "three", **ENDLESS, n=3)]
            with pytest.raises(QueueFull) as caught:
                submit(llm, "two", **ENDLESS, n=2)
            assert caught.value.retry_after >= 1
            streams.append(submit(llm, "one", **ENDLESS))
            with pytest.raises(QueueFull):
                submit(llm, "one more", **ENDLESS)
            for stream in streams:
                await stream.aclose()
            await collect(submit(llm, "room again", max_tokens=2, n=4))

    run(scenario())


def test_more_choices_than_the_server_ever_holds_is_the_requests_fault():
    async def scenario():
        async with scripted(frontend=FrontendConfig(max_num_queued_reqs=2), max_num_seqs=2) as (llm, _):
            with pytest.raises(InvalidRequest) as caught:
                submit(llm, n=5)
            assert caught.value.param == "n"

    run(scenario())


def test_b35_a_queue_of_waiting_requests_is_seen_with_its_reason():
    async def scenario():
        async with scripted(max_num_seqs=1, script=SLOW, engine_options=BIG) as (llm, _):
            streams = [submit(llm, f"r{index}", **ENDLESS) for index in range(3)]
            await until(lambda: llm.stats.num_running == 1 and sum(llm.stats.waiting_by_reason.values()) == 2)
            for stream in streams:
                await stream.aclose()

    run(scenario())


def test_a_request_past_its_time_fails_and_leaves_the_engine():
    async def scenario():
        frontend = FrontendConfig(request_timeout=0.2)
        async with scripted(frontend=frontend, script=SLOW, engine_options=BIG) as (llm, engine):
            started = time.monotonic()
            with pytest.raises(RequestTimeout):
                await collect(submit(llm, **ENDLESS))
            assert time.monotonic() - started >= 0.2
            await until(lambda: llm.stats.finished.get("abort") == 1)
            assert not engine.has_unfinished()

    run(scenario())


def test_a_request_in_time_is_not_cut_by_the_timer():
    async def scenario():
        line = Line(prompt=PROMPT, tokens=byte_ids("ok"))
        async with scripted([line], frontend=FrontendConfig(request_timeout=0.3)) as (llm, _):
            stream = submit(llm)
            await until(lambda: llm.num_in_flight == 0)
            await asyncio.sleep(0.4)
            assert (await collect(stream))[0].text == "ok"

    run(scenario())


def test_nothing_is_taken_before_the_engine_is_ready_or_after_it_was_closed():
    async def scenario():
        async with scripted() as (llm, _):
            pass
        with pytest.raises(Unavailable):
            submit(llm)

    run(scenario())

    async def unstarted():
        llm = make_llm(launcher=None)
        assert llm.state == "loading"
        with pytest.raises(Unavailable) as caught:
            submit(llm)
        assert caught.value.code == "loading"
        with pytest.raises(Unavailable):
            await llm.tokenize("a")
        await llm.close()

    run(unstarted())


def test_b61_draining_lets_running_and_queued_requests_finish_and_takes_no_more():
    async def scenario():
        line = Line(prompt=PROMPT, tokens=byte_ids("all of this text"))
        async with scripted([line], max_num_seqs=1, script=SLOW) as (llm, _):
            running = asyncio.create_task(collect(submit(llm, "running", max_tokens=64)))
            queued = asyncio.create_task(collect(submit(llm, "queued", max_tokens=64)))
            await asyncio.sleep(0.03)
            draining = asyncio.create_task(llm.drain(20.0))
            await asyncio.sleep(0)
            assert llm.state == "draining"
            with pytest.raises(Unavailable) as caught:
                submit(llm, "late")
            assert caught.value.retry_after >= 1
            assert (await running)[0].text == (await queued)[0].text == "all of this text"
            await draining

    run(scenario())


def test_b61_what_outlasts_the_drain_gets_an_error():
    async def scenario():
        async with scripted(script=SLOW, engine_options=BIG) as (llm, engine):
            running = asyncio.create_task(collect(submit(llm, **ENDLESS)))
            await asyncio.sleep(0)
            await llm.drain(0.1)
            with pytest.raises(Unavailable, match="shutting down"):
                await running
            await until(lambda: not engine.has_unfinished())

    run(scenario())


def test_closing_fails_what_is_in_flight():
    async def scenario():
        async with scripted(script=SLOW, engine_options=BIG) as (llm, _):
            running = asyncio.create_task(collect(submit(llm, **ENDLESS)))
            await asyncio.sleep(0)
            await llm.close()
            with pytest.raises(Unavailable):
                await running

    run(scenario())
