"""AsyncLLM over the real core with the scripted backend, the engine in a thread, so that tests can look into it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sojourn.config import FrontendConfig
from sojourn.core.engine_core import EngineCore
from sojourn.core.loop import serve
from sojourn.executor.scripted import Line, Script
from sojourn.frontend.async_llm import AsyncLLM, ReplyStream
from sojourn.frontend.engine_client import EngineClient
from sojourn.frontend.request_state import ChoiceDelta, merge
from sojourn.ipc.launcher import Launcher, ThreadLauncher
from sojourn.ipc.supervisor import Supervisor
from sojourn.records import SamplingParams
from sojourn.timeline.recorder import Recorder
from tests.core.engines import make_engine
from tests.frontend.byte_tokenizer import EOS, VOCAB_SIZE, byte_ids, byte_tokenizer

TIMEOUT = 60.0
PROMPT = byte_ids("say it: ")


def run(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


def make_llm(
    launcher: Launcher,
    *,
    frontend: FrontendConfig | None = None,
    max_num_seqs: int = 16,
    restart: bool = False,
    restart_interval: float = 60.0,
    stuck_after: float = 60.0,
    recorder: Recorder | None = None,
) -> AsyncLLM:
    supervisor = Supervisor(launcher, restart=restart, restart_interval=restart_interval)
    client = EngineClient(supervisor, recorder=recorder, stuck_after=stuck_after)
    return AsyncLLM(
        client,
        byte_tokenizer(),
        None,
        frontend or FrontendConfig(),
        model_name="scripted",
        max_num_seqs=max_num_seqs,
    )


@asynccontextmanager
async def scripted(
    lines: Sequence[Line] = (), *, engine_options: dict[str, Any] | None = None, script: dict[str, Any] | None = None,
    **llm_options: Any,
) -> AsyncIterator[tuple[AsyncLLM, EngineCore]]:  # fmt: skip
    """A ready AsyncLLM and the engine under it, which belongs to the engine's thread: read it when it is idle."""
    options = {"num_blocks": 64, "block_size": 4, "max_num_seqs": llm_options.get("max_num_seqs", 16)}
    engine = make_engine(
        **(options | (engine_options or {})),
        script=Script(vocab_size=VOCAB_SIZE, lines=list(lines), eos_token_id=EOS, **(script or {})),
    )
    llm = make_llm(ThreadLauncher(lambda end: serve(lambda on_progress: engine, end)), **llm_options)
    try:
        await llm.start()
        yield llm, engine
    finally:
        await llm.close()


def submit(llm: AsyncLLM, request_id: str = "r", prompt_ids: Sequence[int] = PROMPT, **options: Any) -> ReplyStream:
    routing = {key: options.pop(key) for key in ("priority", "cache_salt") if key in options}
    params = SamplingParams(**{"temperature": 0.0, **options})
    return llm.submit(request_id, list(prompt_ids), params, arrival_ns=time.monotonic_ns(), **routing)


async def collect(stream: ReplyStream) -> dict[int, ChoiceDelta]:
    """Each choice, merged, by index."""
    pieces: dict[int, list[ChoiceDelta]] = {}
    async for deltas in stream:
        for delta in deltas:
            pieces.setdefault(delta.index, []).append(delta)
    return {index: merge(deltas) for index, deltas in pieces.items()}


async def until(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
