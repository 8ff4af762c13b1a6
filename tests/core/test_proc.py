"""The engine process itself, with the real core and the scripted backend, driven over the real line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from sojourn.config import CacheConfig, EngineConfig, SchedulerConfig
from sojourn.core.loop import IDLE_STEP_PAUSE_S, BusyLoop, Inbox, serve
from sojourn.core.proc import engine_server
from sojourn.errors import StartupError
from sojourn.executor.scripted import Script
from sojourn.ipc.launcher import ProcessLauncher, ThreadLauncher
from sojourn.ipc.messages import AbortRequests, AddRequests, Failed, Outputs, Ready, Refused, Stop
from sojourn.ipc.supervisor import EngineLost
from sojourn.ipc.thread_channel import in_process_channel
from sojourn.records import EngineRequest, EngineStats, FinishReason, SamplingParams
from tests.core.engines import make_engine
from tests.ipc.hearing import HearingClient, HearingSupervisor

TIMEOUT = 30.0


def request(request_id, prompt_ids=(1, 2, 3), **params):
    params = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **params})
    return EngineRequest(request_id=request_id, prompt_ids=list(prompt_ids), params=params, eos_token_ids=(0,))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


def config_for(tmp_path, script):
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    cache = CacheConfig(num_kv_blocks=16, block_size=8)
    return EngineConfig(
        model="scripted", backend="scripted", script=str(path), scheduler=SchedulerConfig(max_num_seqs=4), cache=cache
    )


@asynccontextmanager
async def engine_of(kind, config):
    launcher = ProcessLauncher(config) if kind == "process" else ThreadLauncher(engine_server(config))
    supervisor = HearingSupervisor(launcher, restart=False)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.close()


async def next_event(supervisor, kind):
    while True:
        event = await supervisor.events.get()
        if isinstance(event, kind):
            return event


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_configuration_becomes_an_engine_that_answers(kind, tmp_path):
    config = config_for(tmp_path, {"lines": [{"prompt": [1, 2, 3], "tokens": [7, 8, 9]}]})

    async def scenario():
        async with engine_of(kind, config) as supervisor:
            assert (supervisor.info.num_kv_blocks, supervisor.info.block_size) == (16, 8)
            supervisor.send(AddRequests([request("a", max_tokens=9)]))
            token_ids, finish = [], None
            while finish is None:
                for delta in (await next_event(supervisor, Outputs)).deltas:
                    token_ids += delta.token_ids
                    finish = delta.finish_reason
            assert (token_ids, finish) == ([7, 8, 9, 0], FinishReason.STOP)

    run(scenario())


def test_a_failing_step_ends_the_process_with_its_reason(tmp_path):
    async def scenario():
        async with engine_of("process", config_for(tmp_path, {"raise_at_step": 2})) as supervisor:
            pid = supervisor.pid
            supervisor.send(AddRequests([request("a")]))
            lost = await next_event(supervisor, EngineLost)
            assert "the script says that step 2 fails" in lost.reason
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(scenario())


def test_a_bad_option_is_a_startup_error_from_the_process(tmp_path):
    async def scenario():
        missing = EngineConfig(backend="scripted", script=str(tmp_path / "missing.json"))
        supervisor = HearingSupervisor(ProcessLauncher(missing), restart=False)
        with pytest.raises(StartupError, match=r"missing\.json"):
            await supervisor.start()
        await supervisor.close()

    run(scenario())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_b61_signals_to_the_process_group_do_not_stop_the_engine(number, tmp_path):
    async def scenario():
        async with engine_of("process", config_for(tmp_path, {"seconds_per_step": 0.01})) as supervisor:
            supervisor.send(AddRequests([request("a", max_tokens=10)]))
            await next_event(supervisor, Outputs)
            os.kill(supervisor.pid, number)
            while not any(delta.finish_reason for delta in (await next_event(supervisor, Outputs)).deltas):
                pass

    run(scenario())


def test_a_process_without_a_configuration_ends_by_itself():
    done = subprocess.run(
        [sys.executable, "-m", "sojourn.core.proc"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert b"started by the server" in done.stderr


class Recorder:
    """The engine's end of a line whose messages are all there before the loop looks; the last one ends it."""

    def __init__(self, *messages):
        self._messages = [*messages, Stop()]
        self.all_taken = threading.Event()
        self.sent = []

    def receive(self):
        if self._messages:
            return self._messages.pop(0)
        self.all_taken.set()
        return None

    def send(self, message):
        self.sent.append(message)

    def close(self):
        pass


def test_adds_and_aborts_are_taken_in_the_order_in_which_they_came():
    engine = make_engine()
    end = Recorder(AddRequests([request("a"), request("b")]), AbortRequests(["a"]), AddRequests([request("c")]))
    inbox = Inbox(end)
    assert end.all_taken.wait(5.0)
    BusyLoop(engine, inbox, end).run()
    assert [live.request_id for live in engine.scheduler.waiting] == ["b", "c"]


def test_a_refused_request_does_not_stop_the_others():
    engine = make_engine()
    end = Recorder(AddRequests([request("too long", range(1000)), request("fits")]))
    serve(lambda _: end.all_taken.wait(5.0) and engine, end)
    assert end.sent[0] == Ready(engine.info)
    refused = [message for message in end.sent if isinstance(message, Refused)]
    assert [(message.request_id, message.code) for message in refused] == [("too long", "context_length_exceeded")]
    assert engine.has_unfinished()


def test_a_failure_is_told_before_it_is_raised():
    end = Recorder()

    def build(on_progress):
        raise RuntimeError("no such thing")

    with pytest.raises(RuntimeError):
        serve(build, end)
    assert end.sent == [Failed("engine_failed", "The engine failed: RuntimeError: no such thing")]


def test_b29_the_accounts_are_audited_whenever_the_engine_is_idle():
    engine = make_engine()
    audits = []
    audit = engine.audit
    engine.audit = lambda: audits.append(engine.has_unfinished()) or audit()

    async def scenario():
        line, end = in_process_channel()
        client = HearingClient(line)
        serving = asyncio.ensure_future(asyncio.to_thread(serve, lambda _: engine, end))
        for _ in range(3):
            client.send(AddRequests([request("a")]))
            finished = False
            while not finished:
                message = await client.receive()
                finished = isinstance(message, Outputs) and any(delta.finish_reason for delta in message.deltas)
            await asyncio.sleep(0.02)
        client.send(Stop())
        await serving

    run(scenario())
    assert len(audits) >= 3
    assert not any(audits)


def test_steps_that_compute_nothing_do_not_burn_a_core():
    class Blocked:
        """Has work that can't be scheduled."""

        info = make_engine(script=Script()).info
        num_steps = 0

        def start_reporting(self):
            pass

        def stop_reporting(self):
            pass

        def report(self):
            return None

        def add_request(self, request):
            return SimpleNamespace(sequence=0)

        def abort(self, request_ids):
            pass

        def has_unfinished(self):
            return True

        def step(self):
            self.num_steps += 1
            return []

        def stats(self):
            return EngineStats()

        def audit(self):
            pass

    engine = Blocked()
    seconds = 0.2

    async def scenario():
        client, end = in_process_channel()
        serving = asyncio.ensure_future(asyncio.to_thread(serve, lambda _: engine, end))
        client.send(AddRequests([request("a")]))
        await asyncio.sleep(seconds)
        client.send(Stop())
        await serving

    run(scenario())
    assert 1 <= engine.num_steps <= 2 * seconds / IDLE_STEP_PAUSE_S
