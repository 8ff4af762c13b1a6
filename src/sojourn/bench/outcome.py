"""What one request's recording says: tokens, latencies, or why it failed. Parses; measures nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sojourn.bench.exchange import LISTED_BODY, Recording


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are `time.perf_counter()`. `due` is when the request should have been sent: a client that waits for a free
    place waits on the server's account."""

    due: float
    ended: float
    times: tuple[float, ...] = ()  # arrivals of events with text
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.due

    @property
    def latency(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.due

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: seconds between events. One event may carry several tokens."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; None where there is no second one."""
        if self.output_tokens < 2 or len(self.times) < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1)


def outcome(recording: Recording, due: float) -> Outcome:
    """Counts tokens by the server's own usage, never by events."""
    if recording.error is not None:
        return Outcome(due, recording.ended, error=recording.error)
    if recording.status != 200:
        return Outcome(due, recording.ended, error=f"{recording.status}: {_message(recording.body)}")
    try:
        return _read(recording, due)
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
        return Outcome(due, recording.ended, error=f"an event is not in OpenAI's format: {error!r}")


def _read(recording: Recording, due: float) -> Outcome:
    usage: dict[str, Any] = {}
    finish_reason: str | None = None
    with_text: list[float] = []
    with_choice: list[float] = []
    for at, data in recording.events:
        event = msgspec.json.decode(data)
        if "error" in event:
            return Outcome(due, recording.ended, error=f"in mid-stream: {event['error']['message']}")
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            with_choice.append(at)
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                with_text.append(at)
            finish_reason = choice.get("finish_reason") or finish_reason
    if not usage:
        return Outcome(due, recording.ended, error="no usage: the server does not know stream_options.include_usage")
    # A reply whose only tokens have no text (a lone special token) still had a first token.
    times = with_text or with_choice[:1]
    if not times:
        return Outcome(due, recording.ended, error="a stream without a single choice")
    return Outcome(
        due,
        recording.ended,
        times=tuple(times),
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        finish_reason=finish_reason,
    )


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return body[:LISTED_BODY].decode(errors="replace")
