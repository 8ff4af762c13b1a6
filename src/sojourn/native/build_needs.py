"""Refuses kernels compiled for a newer processor than this one, before they are loaded: they would end in SIGILL.

What they need everywhere is written in the extension module's file, by module_needs.cpp.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
from pathlib import Path

from sojourn import machine
from sojourn.errors import StartupError

_NEEDS = re.compile(rb"sojourn-needs:([ a-z0-9_]*);")


def refuse_foreign_build() -> None:
    """Raises StartupError, naming what this CPU lacks. A missing module is the import's business."""
    spec = importlib.util.find_spec("sojourn.native._kernels")
    if spec is not None and spec.origin is not None:
        check_library(Path(spec.origin))


def check_library(library: Path, root: Path = machine.ROOT) -> None:
    """As `refuse_foreign_build` for the module in this file. Nothing is refused where the CPU's flags are unknown."""
    flags = machine.cpu_flags(root)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _NEEDS.search(data)
        needs = found[1].decode().split() if found else []
    missing = [name for name in needs if flags and name not in flags]
    if missing:
        raise StartupError(
            f"The kernels in {library} were compiled for a processor with {', '.join(missing)}, which this one lacks. "
            "Install Sojourn again on this machine; if CXXFLAGS holds -march, leave that out: it is not needed."
        )
