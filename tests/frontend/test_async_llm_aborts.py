"""Leaving a request in any state: the engine hears of it, nothing is left behind, nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from sojourn.executor.scripted import Line
from tests.frontend.byte_tokenizer import byte_ids
from tests.frontend.llms import PROMPT, collect, run, scripted, submit, until

ENDLESS = {"ignore_eos": True, "max_tokens": 2000}
SLOW = {"seconds_per_step": 0.005}
BIG = {"num_blocks": 1024}


async def assert_empty(llm, engine):
    """B29: nothing in flight in A, nothing live in B, the accounts in order."""
    assert llm.num_in_flight == 0
    await until(lambda: not engine.has_unfinished() and llm.stats.num_running == 0 and llm.stats.kv_live == 0)
    assert llm.stats.kv_cached + llm.stats.kv_free == llm.info.num_kv_blocks
    engine.audit()


async def leave_by_close(llm, stream):
    await stream.aclose()
    await stream.aclose()


async def leave_by_cancelling(llm, stream):
    reading = asyncio.create_task(collect(stream))
    await asyncio.sleep(0.02)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def leave_by_id(llm, stream):
    await llm.abort("r")
    await llm.abort("r")


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_cancelling, leave_by_id])
@pytest.mark.parametrize("n", [1, 3])
def test_b34_a_running_request_leaves_the_engine_with_all_its_choices(leave, n):
    async def scenario():
        async with scripted(script=SLOW, engine_options=BIG) as (llm, engine):
            stream = submit(llm, n=n, **ENDLESS)
            await until(lambda: llm.stats.num_running == n)
            await leave(llm, stream)
            await until(lambda: llm.stats.finished.get("abort") == n)
            await assert_empty(llm, engine)
            after = llm.stats.generation_tokens
            await asyncio.sleep(0.05)
            assert llm.stats.generation_tokens == after

    run(scenario())


def test_b34_a_stream_that_is_dropped_unread_is_aborted():
    async def scenario():
        async with scripted(script=SLOW, engine_options=BIG) as (llm, engine):
            stream = submit(llm, **ENDLESS)
            await until(lambda: llm.stats.num_running == 1)
            del stream
            gc.collect()
            await until(lambda: llm.num_in_flight == 0)
            await assert_empty(llm, engine)

    run(scenario())


def test_b35_a_queued_request_that_is_cancelled_never_runs():
    async def scenario():
        async with scripted(max_num_seqs=1, script=SLOW, engine_options=BIG) as (llm, engine):
            running = submit(llm, "running", **ENDLESS)
            await until(lambda: llm.stats.num_running == 1)
            queued = submit(llm, "queued", prompt_ids=[7] * 100, **ENDLESS)
            await until(lambda: sum(llm.stats.waiting_by_reason.values()) == 1)
            await queued.aclose()
            await until(lambda: sum(llm.stats.waiting_by_reason.values()) == 0)
            assert llm.stats.num_running == 1
            assert llm.stats.prompt_tokens == len(PROMPT)
            await running.aclose()
            await assert_empty(llm, engine)

    run(scenario())


def test_b37_an_abort_in_the_middle_of_a_prefill_stops_it_at_the_next_chunk():
    async def scenario():
        options = {"num_blocks": 1024, "budget": 16}
        async with scripted(script={"seconds_per_step": 0.02}, engine_options=options) as (llm, engine):
            stream = submit(llm, prompt_ids=[7] * 2000, **ENDLESS)
            await until(lambda: llm.stats.prompt_tokens > 0)
            seen = llm.stats.prompt_tokens
            await stream.aclose()
            await until(lambda: llm.stats.num_running == 0)
            assert llm.stats.prompt_tokens <= seen + 3 * 16  # one chunk running, one begun before the abort came
            await assert_empty(llm, engine)

    run(scenario())


def test_b36_a_preempted_request_can_be_aborted():
    async def scenario():
        options = {"num_blocks": 24, "caching": False}
        async with scripted(script={"seconds_per_step": 0.002}, engine_options=options) as (llm, engine):
            streams = [submit(llm, f"r{index}", [10 + index], ignore_eos=True, max_tokens=80) for index in range(3)]
            await until(lambda: llm.stats.num_preemptions > 0 and sum(llm.stats.waiting_by_reason.values()) > 0)
            for stream in reversed(streams):
                await stream.aclose()
            await assert_empty(llm, engine)

    run(scenario())


def test_b36_finished_and_unknown_ids_are_no_ops():
    async def scenario():
        async with scripted() as (llm, engine):
            stream = submit(llm, max_tokens=3)
            await until(lambda: llm.num_in_flight == 0)
            for _ in range(3):
                await llm.abort("r")
                await llm.abort("never seen")
            assert len((await collect(stream))[0].token_ids) == 3
            await stream.aclose()
            assert "abort" not in llm.stats.finished
            await assert_empty(llm, engine)

    run(scenario())


def test_b36_an_aborted_stream_just_ends():
    async def scenario():
        async with scripted(script=SLOW, engine_options=BIG) as (llm, _):
            reading = asyncio.create_task(collect(submit(llm, **ENDLESS)))
            await until(lambda: llm.stats.num_running == 1)
            await llm.abort("r")
            replies = await reading
            assert all(reply.finish_reason is None for reply in replies.values())

    run(scenario())


def test_b38_survivors_get_the_text_they_get_alone():
    async def scenario():
        lines = [
            Line(prompt=byte_ids(word), tokens=byte_ids(f"the text of {word}")) for word in ("one", "two", "3", "4")
        ]
        async with scripted(lines, script=SLOW) as (llm, engine):
            streams = {word: submit(llm, word, byte_ids(word), max_tokens=64) for word in ("one", "two", "3", "4")}
            tasks = {word: asyncio.create_task(collect(stream)) for word, stream in streams.items()}
            await until(lambda: llm.stats.num_running == 4)
            for word in ("two", "4"):
                tasks[word].cancel()
            for word in ("one", "3"):
                assert (await tasks[word])[0].text == f"the text of {word}"
            await assert_empty(llm, engine)

    run(scenario())


def test_b36_five_hundred_random_aborts_leave_everything_empty():
    async def scenario():
        rng = random.Random(36)
        options = {"num_blocks": 48, "budget": 32}
        script = {"seconds_per_step": 0.0005}
        async with scripted(script=script, engine_options=options, max_num_seqs=8) as (llm, engine):

            async def one(index):
                await asyncio.sleep(rng.random() * 2.0)
                n = rng.choice((1, 3))
                prompt_ids = [rng.randrange(2, 6) for _ in range(rng.randrange(1, 60))]
                stream = submit(
                    llm, f"r{index % 50}", prompt_ids, n=n, ignore_eos=True, max_tokens=rng.randrange(1, 60)
                )
                try:
                    await asyncio.wait_for(collect(stream), rng.random() * 0.05)
                except TimeoutError:
                    return 1
                return 0

            aborted = sum(await asyncio.gather(*(one(index) for index in range(500))))
            assert aborted > 100
            await assert_empty(llm, engine)
            whole_pool = (await collect(submit(llm, prompt_ids=[9] * 150, ignore_eos=True, max_tokens=None)))[0]
            assert whole_pool.finish_reason == "length"

    run(scenario())


def test_b36_an_id_used_again_after_an_abort_gets_none_of_the_old_tokens():
    lines = [
        Line(prompt=byte_ids("old:"), tokens=byte_ids("old" * 50)),
        Line(prompt=byte_ids("new:"), tokens=byte_ids("fresh")),
    ]

    async def scenario():
        async with scripted(lines, script={"seconds_per_step": 0.05}) as (llm, _):
            for _ in range(3):
                old = submit(llm, "chat", byte_ids("old:"), max_tokens=100)
                await anext(old)
                await old.aclose()
                new = (await collect(submit(llm, "chat", byte_ids("new:"), max_tokens=20)))[0]
                assert new.text == "fresh"

    run(scenario())
