"""Text work beside the event loop: results, errors, the time bound, and the loop's own pulse."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time

import pytest

from sojourn.errors import ContextLengthExceeded, InvalidRequest, Unavailable
from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.text_pool import NUM_THREADS, TextPool
from tests.frontend.byte_tokenizer import byte_ids
from tests.frontend.llms import run, scripted


def spin_for_ever():
    while True:
        pass


def test_work_runs_in_another_thread_and_its_result_comes_back():
    async def scenario():
        pool = TextPool()
        thread = await pool.run(threading.get_ident, what="look", param="prompt")
        assert thread != threading.get_ident()
        pool.close()

    run(scenario())


def test_an_error_of_the_work_is_the_callers():
    async def scenario():
        pool = TextPool()

        def work():
            raise InvalidRequest("roles must alternate", param="messages")

        with pytest.raises(InvalidRequest, match="roles must alternate"):
            await pool.run(work, what="render", param="messages")
        pool.close()

    run(scenario())


def test_b08_work_beyond_the_time_bound_is_refused_and_its_thread_is_free_again():
    async def scenario():
        pool = TextPool(time_bound=0.2)
        endless = [pool.run(spin_for_ever, what="render the messages", param="messages") for _ in range(NUM_THREADS)]
        for error in await asyncio.gather(*endless, return_exceptions=True):
            assert isinstance(error, InvalidRequest)
            assert (error.param, "0.2 s" in error.message) == ("messages", True)
        assert await pool.run(lambda: "free", what="render", param="messages") == "free"
        pool.close()

    run(scenario())


def test_b36_work_of_a_caller_that_left_is_interrupted():
    async def scenario():
        pool = TextPool()
        for _ in range(NUM_THREADS):
            caller = asyncio.create_task(pool.run(spin_for_ever, what="render", param="messages"))
            await asyncio.sleep(0.05)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert await pool.run(lambda: "free", what="render", param="messages") == "free"
        pool.close()

    run(scenario())


def test_closing_interrupts_what_still_runs():
    async def scenario():
        pool = TextPool()
        caller = asyncio.create_task(pool.run(spin_for_ever, what="render", param="messages"))
        await asyncio.sleep(0.05)
        pool.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(caller, 5.0)

    run(scenario())


def test_waiting_for_a_thread_is_not_counted_against_the_work():
    async def scenario():
        pool = TextPool(time_bound=0.3)
        jobs = [pool.run(lambda: time.sleep(0.2), what="render", param="messages") for _ in range(NUM_THREADS * 2)]
        await asyncio.gather(*jobs)
        pool.close()

    run(scenario())


def test_work_that_gets_no_thread_in_time_is_not_the_requests_fault():
    async def scenario():
        pool = TextPool(time_bound=0.1)
        release = threading.Event()
        blocking = [
            asyncio.ensure_future(pool.run(lambda: release.wait(5), what="render", param="messages"))
            for _ in range(NUM_THREADS)
        ]
        await asyncio.sleep(0.02)
        with pytest.raises(Unavailable):
            await pool.run(lambda: None, what="render", param="messages")
        release.set()
        await asyncio.gather(*blocking, return_exceptions=True)
        pool.close()

    run(scenario())


def test_b62_the_loop_keeps_its_pulse_while_long_prompts_are_handled(monkeypatch):
    def slow_encode(text, **options):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # pure Python: the worst neighbour a loop can have
            pass
        return byte_ids(text)

    async def scenario():
        async with scripted() as (llm, _):
            monkeypatch.setattr(llm.tokenizer, "encode", slow_encode)
            busy = [asyncio.ensure_future(llm.tokenize("x" * 1000)) for _ in range(4)]
            gaps = []
            while not all(job.done() for job in busy):
                started = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - started)
            assert [len(ids) for ids in await asyncio.gather(*busy)] == [1000] * 4
            assert statistics.median(gaps) < 0.2  # on the loop itself this would be two gaps of over half a second

    run(scenario())


def test_b62_a_hopeless_prompt_is_refused_before_it_is_tokenized(monkeypatch):
    async def scenario():
        async with scripted() as (llm, _):
            encoded = []
            monkeypatch.setattr(llm.tokenizer, "encode", lambda text, **options: encoded.append(text) or [])
            with pytest.raises(ContextLengthExceeded, match=r"5000000 characters.*at most 255 tokens"):
                await llm.tokenize("x" * 5_000_000)
            assert encoded == []
            longest = max(len(llm.tokenizer.token_bytes(token_id)) for token_id in range(llm.tokenizer.vocab_size))
            await llm.tokenize("x" * 256 * longest)  # could fit if every token were the longest, so it gets its chance
            assert len(encoded) == 1

    run(scenario())


class StubTemplate:
    """Renders to the last message's content; the options it was given are kept."""

    def render(self, messages, **options):
        self.options = options
        return RenderedPrompt(messages[-1]["content"], [])


def test_rendering_gives_token_ids_and_hands_every_option_to_the_template():
    async def scenario():
        async with scripted() as (llm, _):
            llm.chat_template = StubTemplate()
            ids = await llm.render(
                [{"role": "user", "content": "hi"}],
                tools=[{"type": "function"}],
                template_kwargs={"enable_thinking": False},
            )
            assert ids == byte_ids("hi")
            assert llm.chat_template.options == {
                "tools": [{"type": "function"}],
                "add_generation_prompt": True,
                "continue_final_message": False,
                "template_kwargs": {"enable_thinking": False},
                "trust_message_tokens": False,
            }

    run(scenario())


def test_b31_hopeless_messages_are_refused_by_their_own_name_unless_they_may_be_cut():
    async def scenario():
        async with scripted() as (llm, _):
            llm.chat_template = StubTemplate()
            messages = [{"role": "user", "content": "x" * 50_000}]
            with pytest.raises(ContextLengthExceeded) as caught:
                await llm.render(messages)
            assert caught.value.param == "messages"
            assert len(await llm.render(messages, must_fit=False)) == 50_000

    run(scenario())


def test_b02_without_a_template_the_error_names_the_flag_that_supplies_one():
    async def scenario():
        async with scripted() as (llm, _):
            with pytest.raises(InvalidRequest, match="--chat-template"):
                await llm.render([{"role": "user", "content": "hi"}])

    run(scenario())
