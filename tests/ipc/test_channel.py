"""One suite for both lines: order, size, isolation, closing, dying. The far end is driven from threads, as engines do.

The socket's line runs on both event loops, since each watches sockets in its own way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import uvloop

from sojourn.errors import PayloadTooLarge
from sojourn.ipc import socket_channel
from sojourn.ipc.messages import AbortRequests, AddRequests, Failed, Loading, decode_from_engine
from sojourn.ipc.socket_channel import READ_BYTES, SocketEngineEnd, framed, socket_pair
from sojourn.ipc.socket_client import SocketClientEnd
from sojourn.ipc.thread_channel import in_process_channel
from sojourn.records import EngineRequest, SamplingParams
from tests.ipc.hearing import HearingClient

TIMEOUT = 10.0
MANY_TOKENS = 1_000_000  # some megabytes: no socket's buffer holds them


def socket_line():
    ours, theirs = socket_pair()
    return SocketClientEnd(ours), SocketEngineEnd(theirs.detach())


def big_request(name="big"):
    prompt = [*range(MANY_TOKENS)]
    return AddRequests([EngineRequest(request_id=name, prompt_ids=prompt, params=SamplingParams())])


def runner(make_line, run, make_client=HearingClient):
    """Runs `talk(client, engine)` on a loop and closes both ends afterwards, as the engine and the launcher do."""

    async def whole(talk):
        end, engine = make_line()
        client = make_client(end)
        try:
            await asyncio.wait_for(talk(client, engine), TIMEOUT)
        finally:
            receiver = threading.Thread(target=drain, args=(engine,), daemon=True)
            receiver.start()
            await asyncio.to_thread(engine.close)
            await asyncio.to_thread(receiver.join, TIMEOUT)
            client.close()
        assert not receiver.is_alive(), "close() must end receive()"

    return lambda talk: run(whole(talk))


def drain(engine):
    while True:
        with suppress(msgspec.DecodeError):
            if engine.receive() is None:
                return


LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}
LINES = {"thread": (in_process_channel, asyncio.run)} | {name: (socket_line, run) for name, run in LOOPS.items()}


@pytest.fixture(params=LINES)
def on_line(request):
    return runner(*LINES[request.param])


@pytest.fixture(params=LINES)
def on_bare_line(request):
    """Where the test itself listens."""
    return runner(*LINES[request.param], make_client=lambda end: end)


@pytest.fixture(params=LOOPS)
def on_socket(request):
    return runner(*LINES[request.param])


def in_thread(function, *args):
    """The engine's side of a talk, beside the loop. A daemon, so that a failing test ends."""
    done = asyncio.get_running_loop().create_future()
    set_result = done.get_loop().call_soon_threadsafe

    def call():
        try:
            outcome = function(*args)
        except BaseException as error:
            set_result(done.set_exception, error)
        else:
            set_result(done.set_result, outcome)

    threading.Thread(target=call, daemon=True).start()
    return done


async def nothing_arrives(client):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.receive(), 0.05)


def test_messages_arrive_in_order_in_both_directions(on_line):
    async def talk(client, engine):
        for number in range(500):
            client.send(AbortRequests([str(number)]))
        for number in range(500):
            assert await in_thread(engine.receive) == AbortRequests([str(number)])
            engine.send(Loading("step", number))
        for number in range(500):
            assert await client.receive() == Loading("step", number)

    on_line(talk)


def test_who_listens_late_hears_everything_but_nothing_within_listen(on_bare_line):
    async def talk(client, engine):
        for number in range(3):
            engine.send(Loading("early", number))
        await asyncio.sleep(0.02)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        client.listen(heard.put_nowait)
        assert heard.empty()
        engine.send(Loading("late", 3))
        assert [decode_from_engine(await heard.get()).fraction for _ in range(4)] == [0, 1, 2, 3]

    on_bare_line(talk)


def test_an_engine_that_answers_whatever_is_heard_does_not_keep_the_loop(on_bare_line):
    """Each message fills a read exactly, so that the reader has reason to look for more."""
    message = Loading("x" * (READ_BYTES - len(framed(Loading("x" * 256, 0.0))) + 256), 0.0)
    assert len(framed(message)) == READ_BYTES

    async def talk(client, engine):
        loop = asyncio.get_running_loop()
        turns = [0]
        enough = asyncio.Event()

        def turn():
            turns.append(0)
            if not enough.is_set():
                loop.call_soon(turn)

        def hear(data):
            turns[-1] += 1
            if sum(turns) < 20:
                engine.send(message)
            else:
                enough.set()

        client.listen(hear)
        turn()
        engine.send(message)
        await enough.wait()
        assert max(turns) <= 2

    on_bare_line(talk)


def test_the_receiver_gets_a_copy(on_line):
    async def talk(client, engine):
        ids = ["a"]
        client.send(AbortRequests(ids))
        ids.append("b")
        assert await in_thread(engine.receive) == AbortRequests(["a"])

    on_line(talk)


def test_messages_of_many_megabytes_pass_in_both_directions_at_once_and_keep_their_place(on_line):
    long_text = "x" * 5_000_000

    def speak(engine):
        engine.send(Loading("before", 0.0))
        engine.send(Loading(long_text, 0.5))
        engine.send(Loading("after", 1.0))

    async def talk(client, engine):
        for message in (AbortRequests(["before"]), big_request(), AbortRequests(["after"])):
            client.send(message)
        speaking = in_thread(speak, engine)
        assert [(await client.receive()).stage for _ in range(3)] == ["before", long_text, "after"]
        await speaking
        assert await in_thread(engine.receive) == AbortRequests(["before"])
        assert await in_thread(engine.receive) == big_request()
        assert await in_thread(engine.receive) == AbortRequests(["after"])

    on_line(talk)


def test_an_engine_waits_for_a_front_end_that_is_busy_and_loses_nothing(on_line):
    """More than the line holds, while the loop does not run."""
    count = 50_000

    async def talk(client, engine):
        speaking = in_thread(lambda: [engine.send(Loading("step", number)) for number in range(count)])
        time.sleep(0.2)  # noqa: ASYNC251 - a loop that does not run is what this is about
        assert [(await client.receive()).fraction for _ in range(count)] == [*range(count)]
        await speaking

    on_line(talk)


def test_the_receive_thread_sleeps_while_the_client_takes_what_the_engine_sends(on_socket):
    async def talk(client, engine):
        threads = []
        waiting = in_thread(lambda: threads.append(threading.get_native_id()) or engine.receive())
        await asyncio.sleep(0.05)
        before = times_it_went_to_sleep(*threads)
        for number in range(200):
            engine.send(Loading("step", number))
            await client.receive()
        assert times_it_went_to_sleep(*threads) - before < 20
        engine.close()
        assert await waiting is None

    on_socket(talk)


def times_it_went_to_sleep(thread):
    rows = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("voluntary_ctxt_switches"))


def test_close_ends_a_receive_that_waits_and_every_later_one(on_line):
    async def talk(client, engine):
        waiting = in_thread(engine.receive)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        engine.close()
        engine.close()
        assert await waiting is None
        assert await in_thread(engine.receive) is None

    on_line(talk)


def test_last_words_arrive_although_the_engine_closes_with_messages_unread(on_line):
    async def talk(client, engine):
        client.send(AbortRequests(["never read"]))
        engine.send(Loading("last step", 1.0))
        engine.send(Failed("engine_failed", "why"))
        engine.close()
        assert await client.receive() == Loading("last step", 1.0)
        assert await client.receive() == Failed("engine_failed", "why")
        await nothing_arrives(client)

    on_line(talk)


def test_last_words_arrive_although_the_client_speaks_to_the_dead_engine_first(on_socket):
    async def talk(client, engine):
        engine.send(Failed("engine_failed", "why"))
        engine.close()
        assert await in_thread(engine.receive) is None
        for _ in range(10):  # before the loop has had a chance to read
            client.send(AbortRequests(["late"]))
        assert await client.receive() == Failed("engine_failed", "why")
        await nothing_arrives(client)

    on_socket(talk)


def test_an_engine_that_dies_while_a_long_message_waits_takes_nothing_with_it(on_socket):
    async def talk(client, engine):
        client.send(big_request())
        await asyncio.sleep(0.05)  # the line is full, the rest waits
        for number in range(100):
            engine.send(Loading("x" * 2000, number))  # more than one read takes
        drop(engine)
        client.send(AbortRequests(["late"]))
        assert [(await client.receive()).fraction for _ in range(100)] == [*range(100)]
        await nothing_arrives(client)
        client.send(AbortRequests(["later"]))

    on_socket(talk)


def drop(engine):
    """What a kill does: the descriptors close, without a word and with everything unread."""
    engine._incoming.close()
    engine._outgoing.close()


@pytest.mark.parametrize("unread", [0, 1])
def test_a_client_whose_engine_is_gone_looks_no_more(on_socket, monkeypatch, unread):
    """A socket at its end is always ready: watching it further would keep the loop busy for nothing."""
    looks = []
    read = SocketClientEnd._read
    monkeypatch.setattr(SocketClientEnd, "_read", lambda client, hear: looks.append(client) or read(client, hear))

    async def talk(client, engine):
        client.send(AbortRequests(["unread"] * unread))
        if not unread:
            await in_thread(engine.receive)
        drop(engine)
        await asyncio.sleep(0.1)
        assert len(looks) == 1

    on_socket(talk)


def test_a_closed_client_swallows_what_is_sent(on_line):
    async def talk(client, engine):
        client.close()
        client.close()
        client.send(AbortRequests(["a"]))
        engine.send(Loading("late", 1.0))

    on_line(talk)


def test_a_client_that_closes_ends_receive_and_what_the_engine_says_goes_nowhere(on_line):
    async def talk(client, engine):
        waiting = in_thread(engine.receive)
        await asyncio.sleep(0.02)
        engine.send(Loading("never read", 0.0))
        client.close()
        assert await waiting is None
        for number in range(1000):
            engine.send(Loading("late", number))

    on_line(talk)


def test_an_engine_that_waits_for_room_goes_on_when_the_client_dies(on_socket):
    async def talk(client, engine):
        speaking = in_thread(engine.send, Loading("x" * 20_000_000, 0.0))
        time.sleep(0.2)  # noqa: ASYNC251 - or the loop would read
        client.close()
        await speaking

    on_socket(talk)


def test_foreign_bytes_are_an_error_on_either_side_and_the_next_message_is_none(on_socket):
    async def talk(client, engine):
        frame = b"\0\0\0\x05hello"
        client.end._socket.send(frame)
        client.send(AbortRequests(["a"]))
        engine._outgoing.send(frame)
        engine.send(Loading("b", 0.0))
        with pytest.raises(msgspec.DecodeError):
            await in_thread(engine.receive)
        assert await in_thread(engine.receive) == AbortRequests(["a"])
        with pytest.raises(msgspec.DecodeError):
            await client.receive()
        assert await client.receive() == Loading("b", 0.0)

    on_socket(talk)


def test_after_a_length_that_cannot_be_one_error_and_nothing_more(on_socket):
    async def talk(client, engine):
        client.send(AbortRequests(["before"]))
        client.end._socket.send(b"GET / HTTP/1.1\r\n")
        client.send(AbortRequests(["after"]))
        engine._outgoing.send(b"GET / HTTP/1.1\r\n")
        engine.send(Loading("after", 0.0))
        assert await in_thread(engine.receive) == AbortRequests(["before"])
        with pytest.raises(msgspec.DecodeError):
            await in_thread(engine.receive)
        waiting = in_thread(engine.receive)
        with pytest.raises(msgspec.DecodeError):
            await client.receive()
        await nothing_arrives(client)
        assert not waiting.done()
        engine.close()
        assert await waiting is None

    on_socket(talk)


def test_a_message_too_long_for_a_frame_is_refused_before_it_is_sent(on_socket, monkeypatch):
    monkeypatch.setattr(socket_channel, "MAX_MESSAGE_BYTES", 1000)

    async def talk(client, engine):
        with pytest.raises(PayloadTooLarge):
            client.send(AbortRequests(["a" * 1000]))
        client.send(AbortRequests(["b"]))
        assert await in_thread(engine.receive) == AbortRequests(["b"])

    on_socket(talk)


def test_b84_the_line_has_no_name_and_children_do_not_inherit_it(on_socket):
    async def talk(client, engine):
        for half in (client.end._socket, engine._outgoing, engine._incoming):
            assert half.family == socket.AF_UNIX
            assert half.getsockname() == half.getpeername() == ""
            assert not os.get_inheritable(half.fileno())

    on_socket(talk)


def test_an_inherited_half_is_not_passed_on():
    ours, theirs = socket_pair()
    theirs.set_inheritable(True)  # as it is in the child that was given it
    engine = SocketEngineEnd(theirs.detach())
    assert not os.get_inheritable(engine._outgoing.fileno())
    drop(engine)
    ours.close()
