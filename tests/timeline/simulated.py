"""A request's whole life on a clock that only moves when told: real scheduler, reporter, recorder, reply and account.

The engine's model and the network are the only things played. Everything reads `time.monotonic_ns`, which is replaced
for this thread only: the event loop of another test's server, still running in its own, would wait for hours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.core.engine_core import EngineCore
from sojourn.executor.scripted import Script, ScriptedBackend
from sojourn.frontend.reply import Reply
from sojourn.frontend.request_state import ChoiceState
from sojourn.ipc.messages import Outputs, decode_from_engine, encode
from sojourn.records import EngineRequest, FinishReason, SamplingParams, StepPlan
from sojourn.records.life import Arrival
from sojourn.timeline.account import Account, end_to_end, segments, ttft
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import ChoiceRecord, RequestRecord, RequestState
from tests.core.engines import make_engine
from tests.frontend.byte_tokenizer import VOCAB_SIZE, byte_tokenizer

MS = 1_000_000
StepCost = Callable[[StepPlan], float]  # milliseconds


class Clock:
    """Nanoseconds. `jitter` is called at every look and says how many have passed since the last."""

    def __init__(self, jitter: Callable[[], int] = lambda: 0) -> None:
        self.ns = MS
        self._jitter = jitter

    def __call__(self) -> int:
        passed = self._jitter()  # first: the garbage collector's callback may look at the clock in between
        self.ns += passed
        return self.ns

    def advance(self, milliseconds: float) -> None:
        self.ns += round(milliseconds * MS)


class _TimedBackend(ScriptedBackend):
    def __init__(self, backend: ScriptedBackend, clock: Clock, cost: StepCost) -> None:
        self.__dict__.update(backend.__dict__)
        self._clock = clock
        self._cost = cost

    def forward(self, plan: StepPlan) -> NDArray[np.float32]:
        self._clock.advance(self._cost(plan))
        return super().forward(plan)


@dataclass
class Exchange:
    """One HTTP request as the front end sees it."""

    record: RequestRecord
    reply: Reply
    engine_ids: list[str]
    over: bool = False
    text: list[str] = field(default_factory=list)


class Simulation:
    """Front end and engine in one thread: `step()` is one turn of the engine and the delivery of what it gave."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cost: StepCost, *, clock: Clock | None = None, **engine: object
    ):
        self.clock = clock or Clock()
        here, real_ns = threading.get_ident(), time.monotonic_ns

        def now_ns() -> int:
            return self.clock() if threading.get_ident() == here else real_ns()

        monkeypatch.setattr(time, "monotonic_ns", now_ns)
        monkeypatch.setattr(time, "monotonic", lambda: now_ns() / 1e9)
        script = Script(vocab_size=VOCAB_SIZE, max_model_len=100_000)
        self.engine: EngineCore = make_engine(script=script, **engine)  # type: ignore[arg-type]
        runner = self.engine.runner
        runner.backend = _TimedBackend(runner.backend, self.clock, cost)  # type: ignore[attr-defined]
        self.engine.start_reporting()
        self.recorder = Recorder(origin_ns=0)
        self.recorder.engine_ready(self.engine.info)
        self.exchanges: dict[str, Exchange] = {}
        self._arrivals: list[Arrival] = []
        self._tokenizer = byte_tokenizer()

    def close(self) -> None:
        self.engine.stop_reporting()
        self.recorder.close()

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        *,
        priority: int = 0,
        n: int = 1,
        streamed: bool = True,
        cache_salt: str = "",
        **params: object,
    ) -> Exchange:
        record = self.recorder.begin(name, client_request_id=name, endpoint="/v1/completions", accepted_ns=self.clock())
        record.parsed_ns, record.streamed = self.clock(), streamed
        record.begin_text()
        record.end_render("")
        record.end_text()
        record.submitted_ns = self.clock()
        sampling = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **params})  # type: ignore[arg-type]
        ids = [name] if n == 1 else [f"{name}/{index}" for index in range(n)]
        records = self.recorder.attach(record, ids, prompt_tokens=len(prompt), priority=priority)
        states = {key: ChoiceState(index, self._tokenizer, sampling) for index, key in enumerate(ids)}
        exchange = self.exchanges[name] = Exchange(record, Reply(name, states, records), ids)
        for engine_id in ids:
            received_ns = self.clock()
            live = self.engine.add_request(
                EngineRequest(
                    request_id=engine_id,
                    prompt_ids=list(prompt),
                    params=sampling,
                    priority=priority,
                    cache_salt=cache_salt,
                )
            )
            self._arrivals.append(Arrival(engine_id, received_ns, self.clock(), live.sequence))
        return exchange

    def step(self) -> None:
        deltas = self.engine.step()
        arrivals, self._arrivals = self._arrivals, []
        message = Outputs(deltas=deltas, stats=self.engine.stats(), arrivals=arrivals, report=self.engine.report())
        received = decode_from_engine(encode(message))
        assert isinstance(received, Outputs)
        assert received.report is not None
        now = self.clock()
        for arrival in received.arrivals:
            self.recorder.arrived(arrival)
        self.recorder.take(received.report)
        for delta in received.deltas:
            exchange = self.exchanges[delta.request_id.partition("/")[0]]
            if delta.request_id in exchange.reply.unfinished and delta.finish_reason is not FinishReason.ERROR:
                exchange.reply.push(delta.request_id, delta, now)
        for exchange in list(self.exchanges.values()):
            self._write(exchange)

    def _write(self, exchange: Exchange) -> None:
        """What EventStream and RequestIdHeader do, with nobody slow."""
        record = exchange.record
        done = not exchange.reply.unfinished
        if exchange.over or not any(choice.first_text_ns for choice in record.choices):
            return
        if record.streamed or done:
            began = self.clock()
            record.wrote(began, self.clock())
        if done:
            exchange.over = True
            self.recorder.end(record, 200)

    def leave(self, name: str) -> None:
        """The client closes its connection."""
        exchange = self.exchanges[name]
        if exchange.over:
            return
        exchange.over = exchange.record.client_left = True
        exchange.reply.end()
        self.engine.abort(exchange.engine_ids)
        self.recorder.end(exchange.record, 200)

    def run(self, *, until: Callable[[], bool] | None = None, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if until() if until is not None else not self.engine.has_unfinished():
                break
            self.step()
        else:
            raise AssertionError("it does not end")
        if until is None:
            self.step_idle()

    def step_idle(self) -> None:
        """What the loop publishes when nothing is left."""
        report = self.engine.report()
        assert report is not None
        for arrival in self._arrivals:
            self.recorder.arrived(arrival)
        self._arrivals = []
        self.recorder.take(report)


def accounts(record: RequestRecord, now_ns: int = 0) -> tuple[Account | None, Account]:
    """Time to first token, and end to end."""
    stays = segments(record, now_ns)
    return ttft(record, stays), end_to_end(record, stays, now_ns)


def check_tiles(record: RequestRecord, now_ns: int = 0) -> None:
    """Stations follow each other, none is negative, and parts plus remainder are the total."""
    stays = segments(record, now_ns)
    at = record.accepted_ns
    for stay in stays:
        assert at <= stay.start_ns < stay.end_ns <= (record.ended_ns or now_ns)
        at = stay.end_ns
    for account in (ttft(record, stays), end_to_end(record, stays, now_ns)):
        if account is not None:
            assert all(part >= 0 for part in account.parts.values())
            assert 0 <= account.unattributed_ns <= account.total_ns
            assert sum(account.parts.values()) + account.unattributed_ns == account.total_ns


def check_prefill(choice: ChoiceRecord) -> None:
    """Once the prompt is done: its cached tokens and those of its prefill steps are the prompt."""
    pieces = [piece for _, pieces in choice.work() for piece in pieces]
    computed = sum(tokens for kind, _, tokens in pieces if str(kind) == "prefill")
    assert computed + choice.cached_tokens == choice.prompt_tokens


def states(exchanges: Iterable[Exchange]) -> list[RequestState]:
    return [exchange.record.state for exchange in exchanges]
