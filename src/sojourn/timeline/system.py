"""What a server knows of itself that no request changes: its settings with their sources, and how it started."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sojourn import __version__
from sojourn.machine import resident_bytes

if TYPE_CHECKING:  # the command line imports this file for every --help, and the records need NumPy
    from sojourn.records import EngineInfo

Source = Literal["default", "flag", "environment", "config file"]


class Setting(NamedTuple):
    name: str
    value: Any
    source: Source


class Stage(NamedTuple):
    """One stretch of starting up; stages may overlap, since the engine loads while the tokenizer is built."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class SystemFacts:
    """Filled by whoever starts the server; `origin_ns` is the zero of every time that is shown."""

    origin_ns: int = field(default_factory=time.monotonic_ns)
    settings: list[Setting] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)

    def progress(self, name: str) -> None:
        """News of a stage that others time: it began with the first of them and ended with the last."""
        now = time.monotonic_ns()
        for index, stage in enumerate(self.stages):
            if stage.name == name:
                self.stages[index] = stage._replace(end_ns=now)
                return
        self.stages.append(Stage(name, now, now))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.stages.append(Stage(name, start_ns, time.monotonic_ns()))


def system_document(
    facts: SystemFacts, info: EngineInfo, name: str, *, started_at: int, pids: list[int]
) -> dict[str, Any]:
    """`pids`: the processes whose memory counts as the server's."""
    return {
        "model": name,
        "architecture": info.architecture,
        "quantization": info.quantization,
        "num_parameters": info.num_parameters,
        "context": {"max_model_len": info.max_model_len, "reason": info.max_model_len_reason},
        "isa": info.isa,
        "threads": info.threads,
        "backend": info.backend,
        "memory": {
            "weight_bytes": info.weight_bytes,
            "kv_bytes": info.kv_bytes,
            "resident_bytes": sum(map(resident_bytes, pids)),
        },
        "kv": {"num_blocks": info.num_kv_blocks, "block_size": info.block_size},
        "configuration": [setting._asdict() for setting in facts.settings],
        "startup": [
            {
                "name": stage.name,
                "start_ms": round((stage.start_ns - facts.origin_ns) / 1e6, 3),
                "duration_ms": round((stage.end_ns - stage.start_ns) / 1e6, 3),
            }
            for stage in facts.stages
        ],
        "version": __version__,
        "started_at": started_at,
    }
