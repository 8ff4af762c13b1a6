"""`sojourn generate`: one prompt in, its continuation on stdout as it comes. Nothing else goes to stdout."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sojourn.cli.library_pools import limit_library_pools
from sojourn.cli.options import Settings
from sojourn.records import SamplingParams


def generate_command(settings: Settings, prompt: str, params: SamplingParams) -> None:
    """Raises StartupError, and ClientError for a request the model can't follow."""
    limit_library_pools()
    from sojourn.cli.progress import fetch  # here: it imports NumPy, whose pools must be limited first

    asyncio.run(_generate(settings, fetch(settings.engine.model), prompt, params))


async def _generate(settings: Settings, path: Path, prompt: str, params: SamplingParams) -> None:
    from sojourn.cli.compose import running_llm  # here: it imports NumPy, whose pools must be limited first

    async with running_llm(settings.offline(), path) as llm:
        stream = llm.submit(
            "generate", await llm.tokenize(prompt), params, arrival_ns=time.monotonic_ns(), continues_text=True
        )
        async for deltas in stream:
            print(*(delta.text for delta in deltas), sep="", end="", flush=True)
        print()
