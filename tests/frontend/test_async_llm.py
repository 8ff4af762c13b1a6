"""Requests through the whole engine, text to text: choices, ids, stopping, failure, slow consumers."""

from __future__ import annotations

import asyncio

import pytest

from sojourn.errors import RequestFailed
from sojourn.executor.scripted import Line
from sojourn.frontend.request_checks import choice_seed
from tests.frontend.byte_tokenizer import VOCAB_SIZE, byte_ids, word_ids
from tests.frontend.llms import PROMPT, collect, run, scripted, submit, until

SAY_HI = Line(prompt=PROMPT, tokens=byte_ids("hi 日本"))
TALK = Line(prompt=PROMPT, tokens=word_ids("alpha", " be", "ta", " gam", "ma", " delta") * 8)


def test_a_reply_is_the_text_and_the_tokens_of_the_engine():
    async def scenario():
        async with scripted([SAY_HI]) as (llm, _):
            reply = (await collect(submit(llm, max_tokens=64)))[0]
            assert reply.text == "hi 日本"
            assert reply.token_ids == [*byte_ids("hi 日本"), 0]
            assert (reply.finish_reason, reply.stop_reason) == ("stop", None)

    run(scenario())


def test_deltas_come_as_the_engine_makes_them():
    async def scenario():
        async with scripted([TALK], script={"seconds_per_step": 0.01}) as (llm, _):
            pieces = [delta.text for deltas in [d async for d in submit(llm, max_tokens=6)] for delta in deltas]
            assert "".join(pieces) == "alpha beta gamma delta"
            assert len(pieces) > 1

    run(scenario())


def test_logprobs_come_one_per_token():
    async def scenario():
        async with scripted([SAY_HI]) as (llm, _):
            reply = (await collect(submit(llm, max_tokens=64, logprobs=2)))[0]
            assert len(reply.logprobs) == len(reply.token_ids)
            assert all(len(entry.top_ids) == 2 for entry in reply.logprobs)

    run(scenario())


def test_prompt_logprobs_cover_the_prompt_even_with_max_tokens_zero():
    async def scenario():
        async with scripted([SAY_HI]) as (llm, _):
            reply = (await collect(submit(llm, max_tokens=0, prompt_logprobs=0)))[0]
            assert len(reply.prompt_logprobs) == len(PROMPT)
            assert reply.prompt_logprobs[0] is None
            assert (reply.token_ids, reply.text, reply.finish_reason) == ([], "", "length")

    run(scenario())


def test_prompt_logprobs_are_computed_once_for_all_choices():
    async def scenario():
        async with scripted([SAY_HI]) as (llm, engine):
            replies = await collect(submit(llm, prompt_ids=[*PROMPT, *[9] * 40], max_tokens=1, n=4, prompt_logprobs=1))
            assert len(replies[0].prompt_logprobs) == len(PROMPT) + 40
            assert [replies[index].prompt_logprobs for index in (1, 2, 3)] == [None] * 3
            stats = engine.stats()
            assert stats.prompt_tokens - stats.cached_tokens < 2 * (len(PROMPT) + 40)

    run(scenario())


def test_a_stop_string_ends_the_request_in_the_engine_too():
    async def scenario():
        # Steps take a moment, or the engine could be done with all tokens before the abort reaches it.
        async with scripted([TALK], script={"seconds_per_step": 0.01}) as (llm, engine):
            reply = (await collect(submit(llm, max_tokens=48, stop=("ta gam",))))[0]
            assert (reply.text, reply.finish_reason, reply.stop_reason) == ("alpha be", "stop", "ta gam")
            assert llm.num_in_flight == 0
            await until(lambda: llm.stats.finished.get("abort") == 1)
            assert not engine.has_unfinished()
            assert llm.stats.generation_tokens < 48

    run(scenario())


def test_b39_each_choice_has_its_index_its_end_and_its_own_seed():
    async def scenario():
        async with scripted() as (llm, _):
            options = {"n": 4, "seed": 1, "temperature": 2.0, "max_tokens": 12}
            options["logit_bias"] = dict.fromkeys(byte_ids("abcdefgh"), 100.0)
            first = await collect(submit(llm, prompt_ids=byte_ids("x"), **options))
            again = await collect(submit(llm, prompt_ids=byte_ids("x"), **options))
            assert sorted(first) == [0, 1, 2, 3]
            assert all(reply.finish_reason == "length" and len(reply.token_ids) == 12 for reply in first.values())
            assert first == again
            assert len({reply.text for reply in first.values()}) == 4

    run(scenario())


def test_b39_choices_with_a_seed_differ_from_each_other():
    seeds = [choice_seed(7, index) for index in range(128)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 128
    assert all(-(2**63) <= seed < 2**64 for seed in seeds)
    assert choice_seed(-1, 3) != choice_seed(1, 3)


def test_b39_one_choice_ends_early_and_the_others_go_on():
    async def scenario():
        async with scripted(script={"seconds_per_step": 0.001}) as (llm, _):
            # At this temperature every choice takes its own way, so a common byte ends them at different lengths.
            options = {"n": 3, "seed": 5, "temperature": 2.0, "max_tokens": 40}
            bias = dict.fromkeys(byte_ids("abcdefgh"), 100.0)
            stream = submit(llm, prompt_ids=byte_ids("x"), logit_bias=bias, stop=("a",), **options)
            replies = await collect(stream)
            assert sorted(replies) == [0, 1, 2]
            assert all("a" not in reply.text and reply.finish_reason for reply in replies.values())
            assert len({reply.text for reply in replies.values()}) == 3

    run(scenario())


def test_b72_two_concurrent_equal_ids_do_not_collide():
    async def scenario():
        lines = [Line(prompt=byte_ids(word), tokens=byte_ids(word * 2)) for word in ("one", "two", "three")]
        async with scripted(lines, script={"seconds_per_step": 0.002}) as (llm, _):
            streams = [submit(llm, "same", byte_ids(word), max_tokens=64, n=n) for word, n in _WORDS]
            replies = await asyncio.gather(*map(collect, streams))
            for (word, n), reply in zip(_WORDS, replies, strict=True):
                assert [reply[index].text for index in range(n)] == [word * 2] * n

    run(scenario())


_WORDS = [("one", 1), ("two", 2), ("three", 2), ("one", 2), ("two", 1)]


def test_b41_a_request_that_fails_hurts_nobody_else():
    async def scenario():
        lines = [
            Line(prompt=byte_ids("bad"), tokens=byte_ids("xxxxxxxx"), nan_at=3),
            Line(prompt=byte_ids("good"), tokens=byte_ids("all is well")),
        ]
        async with scripted(lines, script={"seconds_per_step": 0.002}) as (llm, engine):
            bad = asyncio.create_task(collect(submit(llm, "bad", byte_ids("bad"), max_tokens=64)))
            good = asyncio.create_task(collect(submit(llm, "good", byte_ids("good"), max_tokens=64)))
            with pytest.raises(RequestFailed):
                await bad
            assert (await good)[0].text == "all is well"
            assert llm.num_in_flight == 0
            await until(lambda: not engine.has_unfinished())

    run(scenario())


def test_text_before_a_failure_is_delivered():
    async def scenario():
        line = Line(prompt=PROMPT, tokens=byte_ids("xxxxxxxx"), nan_at=3)
        async with scripted([line]) as (llm, _):
            stream = submit(llm, max_tokens=64)
            await until(lambda: llm.num_in_flight == 0)
            assert [delta.text for delta in await anext(stream)] == ["xxx"]
            with pytest.raises(RequestFailed):
                await anext(stream)

    run(scenario())


def test_b67_a_slow_consumer_gets_one_merged_delta_and_delays_nobody():
    async def scenario():
        async with scripted([TALK]) as (llm, _):
            slow = submit(llm, "slow", max_tokens=40)
            quick = (await collect(submit(llm, "quick", max_tokens=40)))[0]
            await until(lambda: llm.num_in_flight == 0)
            deltas = await anext(slow)
            assert [(delta.text, delta.finish_reason) for delta in deltas] == [(quick.text, "length")]
            with pytest.raises(StopAsyncIteration):
                await anext(slow)

    run(scenario())


def test_cached_prompt_tokens_are_reported():
    async def scenario():
        async with scripted([SAY_HI]) as (llm, _):
            cold = (await collect(submit(llm, max_tokens=4)))[0]
            warm = (await collect(submit(llm, max_tokens=4)))[0]
            assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 4)
            assert cold.text == warm.text

    run(scenario())


def test_what_the_server_shows_is_known_once_ready():
    async def scenario():
        async with scripted() as (llm, _):
            assert llm.state == "ready"
            assert llm.info.vocab_size == VOCAB_SIZE
            assert llm.served_names == ("scripted",)
            assert llm.engine_pid is None
            assert llm.progress == ("ready", 1.0)

    run(scenario())
