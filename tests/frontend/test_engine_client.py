"""The engine's death, failure and silence as requests feel them; the engine in a thread and in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import pytest
import uvloop

from sojourn.errors import InvalidRequest, RequestFailed, StartupError, Unavailable
from sojourn.frontend.engine_client import EngineClient
from tests.frontend.llms import TIMEOUT, collect, make_llm, run, submit, until
from tests.ipc import fake_engine
from tests.ipc.conftest import make_launcher

ENDLESS = {"max_tokens": 100_000}


@asynccontextmanager
async def llm_over(kind, **options):
    llm = make_llm(make_launcher(kind), **options)
    try:
        await llm.start()
        yield llm
    finally:
        await llm.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run_on(request):
    """The server runs on uvloop; child processes and sockets are watched differently there."""
    if request.param == "asyncio":
        return run
    return lambda coroutine: uvloop.run(asyncio.wait_for(coroutine, TIMEOUT))


@pytest.fixture(params=["thread", "process"])
def kind(request):
    return request.param


def test_requests_are_answered_over_both_lines(kind, run_on):
    async def scenario():
        async with llm_over(kind) as llm:
            streams = [submit(llm, f"r{index}", [2 + 97 + index], max_tokens=5) for index in range(8)]
            replies = await asyncio.gather(*map(collect, streams))
            assert [reply[0].text for reply in replies] == [chr(97 + index) * 5 for index in range(8)]
            assert llm.num_in_flight == 0

    run_on(scenario())


def test_b59_kill_minus_nine_fails_every_waiter_within_two_seconds(run_on):
    async def scenario():
        async with llm_over("process") as llm:
            reading = [asyncio.create_task(collect(submit(llm, f"r{index}", **ENDLESS))) for index in range(5)]
            await until(lambda: llm.stats.num_running == 5)
            os.kill(llm.engine_pid, signal.SIGKILL)
            killed = time.monotonic()
            results = await asyncio.gather(*reading, return_exceptions=True)
            assert time.monotonic() - killed < 2.0
            assert all(isinstance(error, RequestFailed) and error.code == "engine_dead" for error in results)
            assert llm.num_in_flight == 0
            assert llm.state == "dead"
            with pytest.raises(Unavailable):
                submit(llm)
            assert "SIGKILL" in await llm.gave_up()
            assert llm.stats.num_running == 0

    run_on(scenario())


def test_b59_after_a_restart_requests_are_answered_again(kind):
    async def scenario():
        async with llm_over(kind, restart=True, restart_interval=0.3) as llm:
            with pytest.raises(RequestFailed, match="raised as asked"):
                await collect(submit(llm, "bad", [fake_engine.RAISE]))
            assert llm.state == "dead"
            await until(lambda: llm.state == "ready", seconds=10.0)
            assert (await collect(submit(llm, "good", [99], max_tokens=3)))[0].text == "aaa"

    run(scenario())


def test_a_request_the_engine_refuses_fails_with_that_error_and_alone(kind):
    async def scenario():
        async with llm_over(kind) as llm:
            other = asyncio.create_task(collect(submit(llm, "other", [99], max_tokens=30)))
            with pytest.raises(InvalidRequest, match="refused as asked") as caught:
                await collect(submit(llm, "refused", [fake_engine.REFUSE], n=3))
            assert caught.value.param == "prompt"
            assert (await other)[0].text == "a" * 30
            assert llm.num_in_flight == 0

    run(scenario())


def test_a_message_that_cannot_be_handled_fails_what_is_in_flight_and_the_next_are_heard(kind, monkeypatch, caplog):
    def broken(client, refused):
        raise ZeroDivisionError("in the midst of it")

    monkeypatch.setattr(EngineClient, "_on_refused", broken)

    async def scenario():
        async with llm_over(kind) as llm:
            other = asyncio.create_task(collect(submit(llm, "other", **ENDLESS)))
            await until(lambda: llm.stats.num_running == 1)
            for reading in (collect(submit(llm, "refused", [fake_engine.REFUSE])), other):
                with pytest.raises(RequestFailed, match="failed while handling"):
                    await reading
            assert llm.num_in_flight == 0
            assert (await collect(submit(llm, "next", [99], max_tokens=3)))[0].text == "aaa"
            assert llm.state == "ready"

    run(scenario())
    assert "in the midst of it" in caplog.text


def test_b60_an_engine_whose_step_never_ends_is_stuck_and_takes_nothing_more(monkeypatch):
    monkeypatch.setattr("sojourn.ipc.supervisor.STOP_TIMEOUT_S", 0.1)

    async def scenario():
        async with llm_over("process", stuck_after=0.5) as llm:
            blocked = submit(llm, "blocked", [fake_engine.BLOCK])
            assert llm.state == "ready"
            await until(lambda: llm.state == "stuck")
            with pytest.raises(Unavailable) as caught:
                submit(llm, "late")
            assert caught.value.code == "engine_stuck"
            await blocked.aclose()

    run(scenario())


def test_b60_a_stuck_engine_stays_stuck_when_its_clients_give_up(monkeypatch):
    monkeypatch.setattr("sojourn.ipc.supervisor.STOP_TIMEOUT_S", 0.1)

    async def scenario():
        async with llm_over("process", stuck_after=0.5) as llm:
            blocked = submit(llm, "blocked", [fake_engine.BLOCK])
            await until(lambda: llm.state == "stuck")
            await blocked.aclose()
            assert llm.num_in_flight == 0
            await asyncio.sleep(0.1)
            assert llm.state == "stuck"

    run(scenario())


def test_b60_an_engine_that_took_the_abort_is_not_stuck():
    async def scenario():
        async with llm_over("thread", stuck_after=0.2) as llm:
            stream = submit(llm, **ENDLESS)
            await anext(stream)
            await stream.aclose()
            await asyncio.sleep(0.5)
            assert llm.state == "ready"
            await collect(submit(llm, max_tokens=2))

    run(scenario())


def test_b60_long_work_that_makes_progress_is_not_stuck():
    async def scenario():
        async with llm_over("thread", stuck_after=0.5) as llm:
            stream = submit(llm, **ENDLESS)
            deadline = time.monotonic() + 1.2
            while time.monotonic() < deadline:
                assert llm.state == "ready"
                await asyncio.sleep(0.02)
            await stream.aclose()

    run(scenario())


def test_b60_an_idle_engine_is_not_stuck():
    async def scenario():
        async with llm_over("thread", stuck_after=0.1) as llm:
            await collect(submit(llm, max_tokens=2))
            await asyncio.sleep(0.3)
            assert llm.state == "ready"
            await collect(submit(llm, max_tokens=2))

    run(scenario())


def test_loading_progress_is_passed_on(kind):
    async def scenario():
        seen = []
        llm = make_llm(make_launcher(kind))
        await llm.start(lambda stage, fraction: seen.append((stage, fraction)))
        await llm.close()
        assert seen == [("weights", 0.5)]

    run(scenario())


def test_a_model_that_does_not_exist_is_a_startup_error(kind):
    async def scenario():
        llm = make_llm(make_launcher(kind, "missing"))
        with pytest.raises(StartupError, match="no such model") as caught:
            await llm.start()
        assert caught.value.code == "model_not_found"
        assert llm.state == "dead"
        await llm.close()

    run(scenario())
