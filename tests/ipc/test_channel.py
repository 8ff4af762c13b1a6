"""One suite for both lines: order, isolation, closing. The far end is driven from a thread, as the engine does."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from sojourn.errors import StartupError
from sojourn.ipc.messages import AbortRequests, Loading
from sojourn.ipc.thread_channel import in_process_channel
from sojourn.ipc.zmq_channel import ZmqEngineEnd, make_directory, remove_directory
from sojourn.ipc.zmq_client import ZmqClientEnd

TIMEOUT = 5.0


@pytest.fixture(params=["thread", "zmq"])
def on_line(request):
    """Runs `talk(client, engine)` on a loop and closes both ends afterwards, as the engine and the launcher do."""

    async def run(talk):
        addresses = make_directory() if request.param == "zmq" else None
        if addresses is None:
            client, engine = in_process_channel()
        else:
            client, engine = ZmqClientEnd(addresses), ZmqEngineEnd(addresses)
        try:
            await asyncio.wait_for(talk(client, engine), TIMEOUT)
        finally:
            receiver = threading.Thread(target=lambda: [None for _ in iter(engine.receive, None)])
            receiver.start()
            await asyncio.to_thread(engine.close)
            await asyncio.to_thread(receiver.join, TIMEOUT)
            client.close()
            if addresses is not None:
                remove_directory(addresses)
        assert not receiver.is_alive(), "close() must end receive()"

    return lambda talk: asyncio.run(run(talk))


def test_messages_arrive_in_order_in_both_directions(on_line):
    async def talk(client, engine):
        for number in range(500):
            client.send(AbortRequests([str(number)]))
        for number in range(500):
            assert await asyncio.to_thread(engine.receive) == AbortRequests([str(number)])
            engine.send(Loading("step", number))
        for number in range(500):
            assert await client.receive() == Loading("step", number)

    on_line(talk)


def test_the_receiver_gets_a_copy(on_line):
    async def talk(client, engine):
        ids = ["a"]
        client.send(AbortRequests(ids))
        ids.append("b")
        assert await asyncio.to_thread(engine.receive) == AbortRequests(["a"])

    on_line(talk)


def test_a_closed_client_swallows_what_is_sent(on_line):
    async def talk(client, engine):
        client.close()
        client.send(AbortRequests(["a"]))
        engine.send(Loading("late", 1.0))

    on_line(talk)


def test_b84_the_socket_directory_is_private_and_removed():
    addresses = make_directory()
    directory = Path(addresses.directory)
    try:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert addresses.requests.startswith("ipc://")
        assert addresses.outputs.startswith("ipc://")
    finally:
        remove_directory(addresses)
        remove_directory(addresses)
    assert not directory.exists()


def test_a_temporary_directory_with_a_long_name_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(StartupError, match="TMPDIR"):
        make_directory()
    assert list(long.iterdir()) == []
