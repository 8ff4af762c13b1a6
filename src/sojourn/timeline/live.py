"""What one follower of the recorder has not seen yet. Owned by its reader; the recorder only marks changed blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from sojourn.timeline.records import RequestRecord, StepRecord

Signature = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Subscription:
    """Made by `Recorder.subscribe`, read by `Recorder.changes`."""

    steps_seen: int
    ended_seen: int
    completed_seen: int
    blocks: dict[int, None] = field(default_factory=dict)  # changed since, in order of first change
    signatures: dict[str, Signature] = field(default_factory=dict)  # of live records, as last seen


@dataclass(frozen=True, slots=True)
class Changes:
    """Since the last call. `blocks` are to be read from `Recorder.kv`."""

    requests: list[RequestRecord]
    steps: list[StepRecord]  # oldest first
    blocks: list[int]

    def __bool__(self) -> bool:
        return bool(self.requests or self.steps or self.blocks)


def signature(record: RequestRecord) -> Signature:
    """Differs when the record has changed in anything that a view shows."""
    grown = sum(len(choice.rows) + len(choice.waits) + choice.completion_tokens for choice in record.choices)
    stamps = (record.text_ns, record.submitted_ns, record.first_write_ns)
    events = sum(len(choice.admissions) + len(choice.preemptions) for choice in record.choices)
    return (grown, events, record.num_writes, len(record.choices), *map(bool, stamps))
