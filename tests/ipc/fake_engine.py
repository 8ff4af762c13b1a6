"""An engine without scheduler and model behind the engine's real loop. Run as a script, it is an engine process.

It repeats each prompt's tokens. A prompt that begins with one of the words below misbehaves instead.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

from sojourn.core.loop import OnProgress, serve
from sojourn.errors import InvalidRequest, StartupError
from sojourn.ipc.bootstrap import read_bootstrap, watch_parent
from sojourn.ipc.socket_channel import SocketEngineEnd
from sojourn.records import EngineInfo, EngineRequest, EngineStats, FinishReason, TokenDelta

REFUSE, RAISE, EXIT, BLOCK = 901, 902, 903, 904
VOCAB_SIZE = 1000

INFO = EngineInfo(
    model="fake", architecture="fake", quantization="none", num_parameters=0, vocab_size=VOCAB_SIZE, max_model_len=128,
    max_model_len_reason="fake", num_kv_blocks=8, block_size=16, kv_bytes=0, kv_dtype="f16", weight_bytes=0,
    backend="fake", threads=1, isa="none", load_seconds=0.0,
)  # fmt: skip


@dataclass
class FakeEngine:
    info: EngineInfo = INFO
    seconds_per_step: float = 0.001
    running: dict[str, EngineRequest] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    num_added: int = 0
    num_aborted: int = 0
    num_steps: int = 0
    num_audits: int = 0
    last_step_ns: int = 0

    def start_reporting(self) -> None:
        pass

    def stop_reporting(self) -> None:
        pass

    def report(self) -> None:
        return None

    def add_request(self, request: EngineRequest) -> SimpleNamespace:
        if request.prompt_ids[0] == REFUSE:
            raise InvalidRequest("refused as asked", param="prompt")
        self.running[request.request_id] = request
        self.progress[request.request_id] = 0
        self.num_added += 1
        return SimpleNamespace(sequence=self.num_added)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self.running.pop(request_id, None) is not None:
                del self.progress[request_id]
                self.num_aborted += 1

    def has_unfinished(self) -> bool:
        return bool(self.running)

    def step(self) -> list[TokenDelta]:
        time.sleep(self.seconds_per_step)
        for request in self.running.values():
            self._misbehave(request.prompt_ids[0])
        deltas = [self._advance(request) for request in list(self.running.values())]
        self.num_steps += 1
        self.last_step_ns = time.monotonic_ns()
        return deltas

    def stats(self) -> EngineStats:
        return EngineStats(
            step=self.num_steps,
            num_running=len(self.running),
            finished={"abort": self.num_aborted},
            last_step_ns=self.last_step_ns,
        )

    def audit(self) -> None:
        self.num_audits += 1

    def _advance(self, request: EngineRequest) -> TokenDelta:
        done = self.progress[request.request_id]
        self.progress[request.request_id] += 1
        finished = done + 1 == request.params.max_tokens
        if finished:
            del self.running[request.request_id], self.progress[request.request_id]
        return TokenDelta(
            request_id=request.request_id,
            token_ids=[request.prompt_ids[done % len(request.prompt_ids)]],
            finish_reason=FinishReason.LENGTH if finished else None,
        )

    def _misbehave(self, word: int) -> None:
        if word == RAISE:
            raise ZeroDivisionError("raised as asked")
        if word == EXIT:
            print("last words of the engine", flush=True)
            os._exit(7)
        if word == BLOCK:
            time.sleep(3600)


def build_fake(model: str, on_progress: OnProgress) -> FakeEngine:
    on_progress("weights", 0.5)
    if model == "missing":
        raise StartupError("no such model: missing", code="model_not_found")
    if model == "broken":
        raise RuntimeError("broken loader")
    if model == "oom":
        print("about to run out of memory", flush=True)
        os._exit(9)
    return FakeEngine()


def main() -> int:
    """proc.main with another engine: the same watch over the parent, the same loop."""
    bootstrap = read_bootstrap()
    watch_parent()
    try:
        serve(lambda on_progress: build_fake(bootstrap.config.model, on_progress), SocketEngineEnd(bootstrap.line))
    except Exception:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
