"""Puts the parts together: settings and a model file in, a running AsyncLLM out. Decides nothing on its own."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sojourn.cli.options import Settings
from sojourn.cli.progress import ProgressBar
from sojourn.core.proc import engine_server
from sojourn.frontend.async_llm import AsyncLLM
from sojourn.frontend.chat_template import ChatTemplate, load_chat_template
from sojourn.frontend.engine_client import EngineClient
from sojourn.frontend.tokenizer import Tokenizer, load_tokenizer
from sojourn.ipc.launcher import Launcher, ProcessLauncher, ThreadLauncher
from sojourn.ipc.supervisor import Supervisor
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.system import SystemFacts
from sojourn.weights.checkpoint import open_checkpoint


async def start_llm(
    settings: Settings, path: Path, recorder: Recorder | None = None, facts: SystemFacts | None = None
) -> AsyncLLM:
    """An AsyncLLM whose engine is ready; whoever gets it closes it. Raises StartupError, and leaves no engine behind.

    The engine starts first, so that it loads weights while the tokenizer is built here. `facts` gets the stages.
    """
    facts = facts or SystemFacts()
    supervisor = Supervisor(_launcher(settings, path), restart=not settings.server.no_restart)
    client = EngineClient(supervisor, recorder=recorder)
    with ProgressBar() as bar, facts.stage("start the engine"):

        def on_progress(stage: str, fraction: float) -> None:
            facts.progress(stage)
            bar.update(stage, fraction)

        starting = asyncio.create_task(client.start(on_progress))
        try:
            with facts.stage("load tokenizer and template"):
                tokenizer, template = await asyncio.to_thread(load_text_side, path, settings.frontend.chat_template)
            _settle()
            await starting
        except BaseException:
            starting.cancel()
            await client.close()
            raise
    return AsyncLLM(
        client,
        tokenizer,
        template,
        settings.frontend,
        model_name=settings.engine.model,
        max_num_seqs=settings.engine.scheduler.max_num_seqs,
    )


@asynccontextmanager
async def running_llm(settings: Settings, path: Path) -> AsyncIterator[AsyncLLM]:
    """`start_llm` for a block of code; the engine is stopped on the way out."""
    llm = await start_llm(settings, path)
    try:
        yield llm
    finally:
        await llm.close()


def load_text_side(path: Path, template: str | None) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and chat template of a model; a base model has no template. Raises StartupError."""
    checkpoint = open_checkpoint(path)
    metadata = checkpoint.metadata if checkpoint.directory is None else None
    tokenizer = load_tokenizer(directory=checkpoint.directory, metadata=metadata)
    override = None if template is None else Path(template)
    return tokenizer, load_chat_template(
        directory=checkpoint.directory, metadata=metadata, override=override, tokenizer=tokenizer
    )


def _settle() -> None:
    """What loading left behind goes back to the system; what stays is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries return memory by themselves
    if trim is not None:
        trim(0)


def _launcher(settings: Settings, path: Path) -> Launcher:
    config = dataclasses.replace(settings.engine, model=str(path))
    return ThreadLauncher(engine_server(config)) if settings.server.in_process else ProcessLauncher(config)
