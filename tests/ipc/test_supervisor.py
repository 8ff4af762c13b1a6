"""The engine's life as A sees it, with the engine in a thread and in a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from sojourn.config import EngineConfig
from sojourn.errors import StartupError
from sojourn.ipc.launcher import ProcessLauncher
from sojourn.ipc.messages import AbortRequests, AddRequests, Loading, Outputs, Ready, Refused
from sojourn.ipc.supervisor import EngineLost
from sojourn.records import EngineRequest, SamplingParams
from tests.ipc import fake_engine
from tests.ipc.hearing import HearingSupervisor

TIMEOUT = 20.0


def request(request_id, prompt_ids=(1, 2, 3), max_tokens=4):
    return EngineRequest(
        request_id=request_id, prompt_ids=list(prompt_ids), params=SamplingParams(max_tokens=max_tokens)
    )


@asynccontextmanager
async def running(launcher, **options):
    supervisor = HearingSupervisor(launcher, **options)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


@pytest.fixture(params=["asyncio", "uvloop"])
def run_on(request):
    """Each loop starts children, and gives them descriptors, in its own way."""
    run = {"asyncio": asyncio.run, "uvloop": uvloop.run}[request.param]
    return lambda coroutine: run(asyncio.wait_for(coroutine, TIMEOUT))


async def next_event(supervisor, kind):
    while True:
        event = await supervisor.events.get()
        if isinstance(event, kind):
            return event


async def tokens_of(supervisor, request_id):
    token_ids = []
    while True:
        outputs = await next_event(supervisor, Outputs)
        for delta in outputs.deltas:
            if delta.request_id == request_id:
                token_ids += delta.token_ids
                if delta.finish_reason is not None:
                    return token_ids


def test_it_is_ready_once_the_engine_has_loaded(launcher):
    async def scenario():
        supervisor = HearingSupervisor(launcher())
        assert supervisor.state == "loading"
        assert await supervisor.start() == fake_engine.INFO
        assert supervisor.state == "ready"
        assert await next_event(supervisor, (Loading, Ready)) == Loading("weights", 0.5)
        await supervisor.close()
        assert supervisor.state == "dead"

    run(scenario())


def test_requests_are_answered(launcher):
    async def scenario():
        async with running(launcher()) as supervisor:
            supervisor.send(AddRequests([request("a")]))
            assert await tokens_of(supervisor, "a") == [1, 2, 3, 1]

    run(scenario())


def test_a_refusal_comes_back_with_the_error_it_was(launcher):
    async def scenario():
        async with running(launcher()) as supervisor:
            supervisor.send(AddRequests([request("a", [fake_engine.REFUSE])]))
            refused = await next_event(supervisor, Refused)
            assert (refused.request_id, refused.code, refused.param) == ("a", "invalid_value", "prompt")

    run(scenario())


def test_arrivals_are_stamped_when_received_and_when_taken(launcher):
    async def scenario():
        async with running(launcher()) as supervisor:
            before = time.monotonic_ns()
            supervisor.send(AddRequests([request("a")]))
            outputs = await next_event(supervisor, Outputs)
            arrival = outputs.arrivals[0]
            assert arrival.request_id == "a"
            assert before < arrival.received_ns <= arrival.taken_ns <= outputs.sent_ns < time.monotonic_ns()

    run(scenario())


def test_an_abort_changes_the_gauges_without_a_further_step(launcher):
    async def scenario():
        async with running(launcher()) as supervisor:
            supervisor.send(AddRequests([request("a", max_tokens=10_000)]))
            await next_event(supervisor, Outputs)
            supervisor.send(AbortRequests(["a", "unknown"]))
            while (outputs := await next_event(supervisor, Outputs)).stats.num_running:
                pass
            assert outputs.stats.finished == {"abort": 1}

    run(scenario())


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("missing", "model_not_found", "no such model: missing"),
        ("broken", "engine_failed", "RuntimeError: broken loader"),
    ],
)
def test_an_engine_that_cannot_load_is_a_startup_error_in_its_own_words(launcher, model, code, message):
    async def scenario():
        supervisor = HearingSupervisor(launcher(model))
        with pytest.raises(StartupError, match=message) as caught:
            await supervisor.start()
        assert caught.value.code == code
        await supervisor.close()

    run(scenario())


def test_an_engine_that_dies_while_loading_is_a_startup_error_with_its_last_output(process_launcher):
    async def scenario():
        supervisor = HearingSupervisor(process_launcher("oom"))
        with pytest.raises(StartupError, match=r"status 9.*about to run out of memory"):
            await supervisor.start()
        await supervisor.close()

    run(scenario())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((sys.executable, "-c", "raise SystemExit(4)"), "exited with status 4"),
        (("/nonexistent/engine",), "could not be started: .*/nonexistent/engine"),
    ],
)
def test_a_command_that_is_no_engine_is_a_startup_error(command, message):
    async def scenario():
        supervisor = HearingSupervisor(ProcessLauncher(EngineConfig(), command=command))
        with pytest.raises(StartupError, match=message):
            await supervisor.start()
        await supervisor.close()

    run(scenario())


def test_a_launcher_that_breaks_unexpectedly_does_not_leave_the_caller_waiting():
    class Broken:
        async def launch(self):
            raise ZeroDivisionError("launcher")

    async def scenario():
        supervisor = HearingSupervisor(Broken())
        with pytest.raises(StartupError, match="could not be started: launcher"):
            await supervisor.start()

    run(scenario())


def test_closing_while_loading_ends_the_start(monkeypatch):
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr("sojourn.ipc.supervisor.STOP_TIMEOUT_S", 0.1)

    async def scenario():
        supervisor = HearingSupervisor(ProcessLauncher(EngineConfig(), command=command))
        starting = asyncio.create_task(supervisor.start())
        await asyncio.sleep(0.1)
        await supervisor.close()
        with pytest.raises(StartupError, match="before it was ready"):
            await starting

    run(scenario())


def test_a_step_that_raises_ends_the_engine_and_says_why(launcher):
    async def scenario():
        async with running(launcher(), restart=False) as supervisor:
            supervisor.send(AddRequests([request("a", [fake_engine.RAISE])]))
            lost = await next_event(supervisor, EngineLost)
            assert "ZeroDivisionError: raised as asked" in lost.reason
            assert supervisor.state == "dead"
            assert await supervisor.gave_up() == lost.reason

    run(scenario())


def test_b59_a_killed_engine_process_is_noticed_within_two_seconds(process_launcher):
    async def scenario():
        async with running(process_launcher(), restart=False) as supervisor:
            supervisor.send(AddRequests([request("a", max_tokens=10_000)]))
            await next_event(supervisor, Outputs)
            os.kill(supervisor.pid, signal.SIGKILL)
            killed = time.monotonic()
            lost = await next_event(supervisor, EngineLost)
            assert time.monotonic() - killed < 2.0
            assert "SIGKILL" in lost.reason
            assert supervisor.state == "dead"

    run(scenario())


def test_the_last_output_of_a_dead_engine_explains_it(process_launcher, capfd):
    async def scenario():
        async with running(process_launcher(), restart=False) as supervisor:
            supervisor.send(AddRequests([request("a", [fake_engine.EXIT])]))
            lost = await next_event(supervisor, EngineLost)
            assert "status 7" in lost.reason
            assert "last words of the engine" in lost.reason

    run(scenario())


def test_a_dead_engine_is_started_again_and_serves(launcher):
    async def scenario():
        async with running(launcher(), restart_interval=0.3) as supervisor:
            supervisor.send(AddRequests([request("a", [fake_engine.RAISE])]))
            await next_event(supervisor, EngineLost)
            await next_event(supervisor, Ready)
            assert supervisor.state == "ready"
            supervisor.send(AddRequests([request("b")]))
            assert await tokens_of(supervisor, "b") == [1, 2, 3, 1]

    run(scenario())


def test_starts_are_at_least_the_interval_apart(launcher):
    async def scenario():
        started = time.monotonic()
        async with running(launcher(), restart_interval=1.0) as supervisor:
            supervisor.send(AddRequests([request("a", [fake_engine.RAISE])]))
            await next_event(supervisor, EngineLost)
            assert supervisor.state == "dead"
            await next_event(supervisor, Loading)
            assert time.monotonic() - started >= 1.0

    run(scenario())


def open_descriptors():
    return sorted(os.listdir("/proc/self/fd"), key=int)


async def descriptors_before_a_start():
    """Once the loop has started some child: uvloop opens /dev/null at the first and keeps it."""
    child = await asyncio.create_subprocess_exec("true", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    await child.communicate()
    await asyncio.sleep(0)
    return open_descriptors()


def test_close_stops_a_busy_engine_and_leaves_nothing_behind(process_launcher, run_on):
    async def scenario():
        before = await descriptors_before_a_start()
        async with running(process_launcher()) as supervisor:
            pid = supervisor.pid
            supervisor.send(AddRequests([request("a", max_tokens=10_000)]))
            await next_event(supervisor, Outputs)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await asyncio.sleep(0)  # uvloop closes its pipes one turn later
        assert open_descriptors() == before

    run_on(scenario())


@pytest.mark.parametrize("command", [(sys.executable, "-c", "raise SystemExit(4)"), ("/nonexistent/engine",)])
def test_a_start_that_fails_leaves_no_descriptor_open(command, run_on):
    async def scenario():
        before = await descriptors_before_a_start()
        supervisor = HearingSupervisor(ProcessLauncher(EngineConfig(), command=command))
        with pytest.raises(StartupError):
            await supervisor.start()
        await supervisor.close()
        await asyncio.sleep(0)  # uvloop closes its pipes one turn later
        assert open_descriptors() == before

    run_on(scenario())


def test_a_killed_engine_leaves_no_descriptor_open_once_another_runs(process_launcher, run_on):
    async def scenario():
        async with running(process_launcher(), restart_interval=0.1) as supervisor:
            before = len(open_descriptors())
            os.kill(supervisor.pid, signal.SIGKILL)
            await next_event(supervisor, EngineLost)
            await next_event(supervisor, Ready)
            assert len(open_descriptors()) == before

    run_on(scenario())


def test_what_the_engine_process_starts_inherits_nothing_of_the_line(process_launcher, run_on):
    async def scenario():
        async with running(process_launcher()) as supervisor:
            sockets = sockets_of(supervisor.pid)
            standard = {sockets.get(fd) for fd in "012"}  # uvloop's pipes are sockets too
            line = [fd for fd, inode in sockets.items() if inode not in standard]
            assert line
            assert all(flags_of(supervisor.pid, fd) & os.O_CLOEXEC for fd in line)

    run_on(scenario())


def flags_of(pid, fd):
    rows = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()
    return next(int(row.split()[1], 8) for row in rows if row.startswith("flags:"))


def test_b84_neither_side_listens_on_a_network_port(process_launcher):
    async def scenario():
        async with running(process_launcher()) as supervisor:
            listening = listening_inodes()
            assert not listening & set(sockets_of(supervisor.pid).values())
            assert not listening & set(sockets_of(os.getpid()).values())

    run(scenario())


def test_b84_the_line_has_no_name_in_any_file_system(process_launcher):
    async def scenario():
        async with running(process_launcher()) as supervisor:
            theirs = set(sockets_of(supervisor.pid).values())
            assert len(theirs) == 1  # the line and no other
            assert [row[7:] for row in unix_sockets() if row[6] in theirs] == [[]]  # where a path would stand

    run(scenario())


def unix_sockets():
    return [row.split() for row in Path("/proc/net/unix").read_text().splitlines()]


def listening_inodes():
    """Of every TCP socket of this machine that accepts connections."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "0A"}


def sockets_of(pid):
    """Inodes of a process's sockets by file descriptor."""
    inodes = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this very listing
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            if link.startswith("socket:"):
                inodes[fd] = link.removeprefix("socket:[").rstrip("]")
    return inodes


ORPHAN_MAKER = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.ipc.conftest import make_launcher
from sojourn.ipc.supervisor import Supervisor

async def main():
    supervisor = Supervisor(make_launcher("process"))
    await supervisor.start(lambda event: None)
    print(supervisor.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_b59_the_engine_process_dies_with_its_parent():
    code = ORPHAN_MAKER.format(root=str(Path(__file__).parents[2]))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5.0
    while not _is_gone(pid):
        assert time.monotonic() < deadline, "an orphan is left"
        time.sleep(0.02)


def _is_gone(pid):
    """Or waits to be reaped: an orphan's adoptive parent may take its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
