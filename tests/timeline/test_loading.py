"""A request sent before the engine was ready. The server refuses those; a client of the channel may send one."""

from __future__ import annotations

import threading

from sojourn.core.loop import serve
from sojourn.ipc.messages import AddRequests, FromEngine, Outputs, Ready, Stop, ToEngine
from sojourn.records import EngineRequest, SamplingParams
from sojourn.records.life import WaitingReason
from sojourn.timeline.recorder import Recorder
from tests.core.engines import make_engine


class _EarlyLine:
    """Holds a request before the engine exists, and ends the loop once that request is finished."""

    def __init__(self, request: EngineRequest) -> None:
        self._messages: list[ToEngine] = [AddRequests([request])]
        self.taken = threading.Event()
        self.over = threading.Event()
        self.closed = threading.Event()
        self.sent: list[FromEngine] = []

    def receive(self) -> ToEngine | None:
        if self._messages:
            return self._messages.pop()
        if self.taken.is_set():  # `Stop` was taken: what would come is waited for, as on a real line
            self.closed.wait(10)
            return None
        self.taken.set()
        return Stop() if self.over.wait(10) else None

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)
        if isinstance(message, Outputs) and any(delta.finish_reason is not None for delta in message.deltas):
            self.over.set()

    def close(self) -> None:
        self.over.set()
        self.closed.set()


def test_it_waits_for_the_model() -> None:
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    line = _EarlyLine(EngineRequest(request_id="early", prompt_ids=[1, 2], params=params))

    def build(on_progress: object) -> object:
        assert line.taken.wait(10)
        return make_engine()

    serve(build, line)  # type: ignore[arg-type]
    recorder = Recorder()
    record = recorder.begin("early", client_request_id="c", endpoint="/v1/completions", accepted_ns=1)
    recorder.attach(record, ["early"], prompt_tokens=2, priority=0)
    for message in line.sent:
        if isinstance(message, Ready):
            recorder.engine_ready(message.info)
        if isinstance(message, Outputs):
            for arrival in message.arrivals:
                recorder.arrived(arrival)
            assert message.report is not None
            recorder.take(message.report)
    recorder.close()
    (choice,) = record.choices
    assert [wait.reason for wait in choice.wait_intervals(0)] == [WaitingReason.LOADING]
    assert choice.num_steps == 2
