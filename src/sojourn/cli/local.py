"""Replies of a model in this process, as a plain iterator: owns the event loop that the engine's front end lives on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sojourn.cli.compose import running_llm
from sojourn.cli.options import Settings
from sojourn.cli.progress import fetch
from sojourn.errors import StartupError
from sojourn.frontend.async_llm import AsyncLLM, ReplyStream
from sojourn.records import SamplingParams


class LocalChat:
    """The loop runs only while a piece is awaited; nobody else needs it in between."""

    def __init__(self, runner: asyncio.Runner, llm: AsyncLLM, params: SamplingParams) -> None:
        self.name = llm.served_names[0]
        self._runner = runner
        self._llm = llm
        self._params = params

    def reply(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Pieces of the answer as they come. Closing the iterator, or Ctrl-C, aborts the request in the engine."""
        stream = self._runner.run(self._submit(messages))
        try:
            while (text := self._runner.run(_next_text(stream))) is not None:
                yield text
        finally:
            self._runner.run(stream.aclose())

    async def _submit(self, messages: list[dict[str, Any]]) -> ReplyStream:
        ids = await self._llm.render(messages)
        return self._llm.submit("chat", ids, self._params, arrival_ns=time.monotonic_ns())


async def _next_text(stream: ReplyStream) -> str | None:
    async for deltas in stream:
        return "".join(delta.text for delta in deltas)
    return None


@contextmanager
def local_chat(settings: Settings, params: SamplingParams) -> Iterator[LocalChat]:
    """Fetches and loads the model; stops the engine on the way out. Raises StartupError."""
    path = fetch(settings.engine.model)
    with asyncio.Runner() as runner:
        running = running_llm(settings.offline(), path)
        llm = runner.run(running.__aenter__())
        try:
            if llm.chat_template is None:
                raise StartupError(
                    f"{settings.engine.model} has no chat template, so it can't chat. "
                    "Give one with --chat-template FILE, or use `sojourn generate`."
                )
            yield LocalChat(runner, llm, params)
        finally:
            runner.run(running.__aexit__(None, None, None))
