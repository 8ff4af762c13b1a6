"""What the supervisor passes on and when, word by word: the engine is driven by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from sojourn.ipc.messages import Failed, Loading, Ready, encode
from sojourn.ipc.supervisor import EngineLost, Supervisor
from tests.ipc import fake_engine

TIMEOUT = 20.0


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


class HandDriven:
    """Launcher, engine and line in one; the test speaks for the engine and ends it."""

    pid = None

    def __init__(self):
        self.channel = self
        self.ended = asyncio.Future()
        self.has_listener = asyncio.Event()
        self.stopping = asyncio.Event()
        self.may_stop = asyncio.Event()

    async def launch(self):
        return self

    def listen(self, on_data):
        self.say_bytes = on_data
        self.has_listener.set()

    def say(self, message):
        self.say_bytes(encode(message))

    async def wait(self):
        return await asyncio.shield(self.ended)

    async def stop(self, grace):
        self.stopping.set()
        await self.may_stop.wait()


@asynccontextmanager
async def hand_driven():
    """A supervisor whose engine is ready, that engine, and what was heard with the state it was heard in."""
    engine, heard = HandDriven(), []
    supervisor = Supervisor(engine, restart=False)
    starting = asyncio.create_task(supervisor.start(lambda event: heard.append((event, supervisor.state))))
    await engine.has_listener.wait()
    engine.say(Ready(fake_engine.INFO))
    await starting
    assert heard.pop() == (Ready(fake_engine.INFO), "ready")
    yield supervisor, engine, heard
    engine.may_stop.set()
    await supervisor.close()


def test_what_is_said_has_been_heard_when_the_line_has_passed_it_on():
    async def scenario():
        async with hand_driven() as (_, engine, heard):
            for number in range(3):
                engine.say(Loading("step", number))
            assert [event.fraction for event, _ in heard] == [0, 1, 2]

    run(scenario())


def test_a_message_that_is_none_ends_the_engine_and_nothing_after_it_counts():
    async def scenario():
        async with hand_driven() as (supervisor, engine, heard):
            engine.say(Loading("before", 0.0))
            engine.say_bytes(b"hello")
            engine.say(Loading("after", 0.0))
            await engine.stopping.wait()
            engine.say(Ready(fake_engine.INFO))
            assert supervisor.state == "dead"
            engine.may_stop.set()
            reason = await supervisor.gave_up()
            assert "sent something that is no message: " in reason
            assert heard == [(Loading("before", 0.0), "ready"), (EngineLost(reason), "dead")]

    run(scenario())


def test_last_words_are_heard_before_the_loss_and_none_once_the_engine_is_being_stopped():
    async def scenario():
        async with hand_driven() as (supervisor, engine, heard):
            engine.ended.set_result("It just ended.")
            for _ in range(20):  # turns of the loop, of which it needs a few
                await asyncio.sleep(0)
            assert supervisor.state == "dead"
            engine.say(Loading("last words", 0.0))
            engine.say(Failed("engine_failed", "why"))
            await engine.stopping.wait()
            engine.say(Loading("too late", 0.0))
            engine.may_stop.set()
            assert await supervisor.gave_up() == "why"
            assert heard == [(Loading("last words", 0.0), "dead"), (EngineLost("why"), "dead")]

    run(scenario())
