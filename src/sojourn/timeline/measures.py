"""The intervals of a finished request that monitoring asks for, as vLLM defines them. Pure arithmetic over a record.

Rounded like the record's JSON, so that sums over either are the same.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from sojourn.records.life import Station
from sojourn.timeline.account import end_to_end, segments, token_rows, tpot_ns, ttft
from sojourn.timeline.documents import ms
from sojourn.timeline.records import ChoiceRecord, RequestRecord


class Measures(NamedTuple):
    """Milliseconds; None where the request never got so far. Of several choices, those of the first to answer."""

    ttft_ms: float | None
    e2e_ms: float
    queue_ms: float  # waited in the engine before it was first computed
    prefill_ms: float | None  # from its first step to its first token, whatever came between
    decode_ms: float | None  # from its first token to its last
    tpot_ms: float | None
    gaps_ms: list[float]  # between tokens, of all choices
    stations_ms: dict[Station, float]
    prompt_tokens: int
    lengths: list[int]  # tokens of each choice

    @property
    def inference_ms(self) -> float | None:
        return None if self.prefill_ms is None or self.decode_ms is None else self.prefill_ms + self.decode_ms


def measures(record: RequestRecord) -> Measures:
    """Of a record that is complete and whose request reached the engine. A token's time is the end of its step."""
    choice = record.first_choice
    assert choice is not None
    stays = segments(record, record.ended_ns)
    first_token, whole = ttft(record, stays), end_to_end(record, stays, record.ended_ns)
    emitted = token_rows(choice)
    mean = tpot_ns(choice, emitted)
    ends, starts = choice.columns("end_ns", "start_ns")
    return Measures(
        ttft_ms=None if first_token is None else ms(first_token.total_ns),
        e2e_ms=ms(whole.total_ns),
        queue_ms=ms(whole.parts[Station.QUEUE]),
        prefill_ms=ms(ends[emitted[0]] - starts[0]) if emitted else None,
        decode_ms=ms(ends[emitted[-1]] - ends[emitted[0]]) if emitted else None,
        tpot_ms=None if mean is None else ms(mean),
        gaps_ms=[gap for each in record.choices for gap in _gaps(each)],
        stations_ms={station: ms(part) for station, part in whole.parts.items()},
        prompt_tokens=choice.prompt_tokens,
        lengths=[each.completion_tokens for each in record.choices],
    )


def _gaps(choice: ChoiceRecord) -> list[float]:
    ends = choice.columns("end_ns")[0]
    return [ms(ends[later] - ends[earlier]) for earlier, later in pairwise(token_rows(choice))]
