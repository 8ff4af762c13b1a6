"""Makes JSON documents of records: what /v1/requests, /v1/steps and /v1/events show. Owns no state.

Milliseconds with three decimals. Inside a request they count from its acceptance, everywhere else from the start of
the server. Each is a whole number of microseconds, so parts and remainder still add up to the total.
"""

from __future__ import annotations

from typing import Any

from sojourn.records.life import BlockState
from sojourn.timeline.account import (
    PROCESS,
    Account,
    Segment,
    end_to_end,
    segments,
    token_rows,
    tpot_ns,
    ttft,
)
from sojourn.timeline.causes import Cause, gaps
from sojourn.timeline.live import Changes
from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import ChoiceRecord, RequestRecord, StepRecord

Document = dict[str, Any]
PARAMETERS = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "n",
)  # fmt: skip


def ms(duration_ns: float) -> float:
    return round(duration_ns / 1000) / 1000


def account_document(account: Account) -> Document:
    """The remainder takes up what rounding leaves, so that the numbers shown add up."""
    total_us = round(account.total_ns / 1000)
    parts_us = {station: round(part / 1000) for station, part in account.parts.items()}
    return {
        "total_ms": total_us / 1000,
        "parts": {str(station): part / 1000 for station, part in parts_us.items()},
        "unattributed_ms": (total_us - sum(parts_us.values())) / 1000,
    }


def request_document(recorder: Recorder, record: RequestRecord, now_ns: int, *, full: bool = True) -> Document:
    """The record; without `full` its summary: no steps, no gaps, no blocks. `now_ns` ends what still goes on."""
    stays = segments(record, now_ns)
    first = record.first_choice
    account = ttft(record, stays)
    whole = end_to_end(record, stays, now_ns)
    document: Document = {
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "model": record.model,
        "endpoint": record.endpoint,
        "streamed": record.streamed,
        "state": str(record.state),
        "state_when_left": None if record.state_when_left is None else str(record.state_when_left),
        "status": record.status or None,
        "error": record.error,
        "received_at": round(record.received_at, 6),
        "received_ms": ms(record.accepted_ns - recorder.origin_ns),
        "priority": record.priority,
        "stations": [_station(stay, record) for stay in stays],
        "ttft": None if account is None else account_document(account),
        "e2e_ms": ms(whole.total_ns),
        "e2e": account_document(whole),
        "stream": {"writes": record.num_writes, "blocked_ms": ms(record.blocked_ns)},
    }
    document |= _choice_document(recorder, record, first or ChoiceRecord("", 0, 0), now_ns, full=full)
    if full:
        document |= asked_document(record)
    if full and first is not None:
        document["sharing"] = _sharing(recorder, record)
    if len(record.choices) > 1:
        document["choices"] = [
            {
                "id": choice.engine_id,
                "index": choice.index,
                **_choice_document(recorder, record, choice, now_ns, full=full),
            }
            for choice in record.choices
        ]
    if recorder.record_text and full:
        output = None if first is None or first.text is None else "".join(first.text)
        document["text"] = {"prompt": record.prompt_text, "output": output}
    return document


def asked_document(record: RequestRecord) -> Document:
    """What the client sent along: its trace context, and the numbers among its sampling parameters."""
    params = record.params
    return {
        "traceparent": record.traceparent,
        "tracestate": record.tracestate,
        "params": None if params is None else {name: getattr(params, name) for name in PARAMETERS},
    }


def _choice_document(
    recorder: Recorder, record: RequestRecord, choice: ChoiceRecord, now_ns: int, *, full: bool
) -> Document:
    emitted = token_rows(choice)
    mean = tpot_ns(choice, emitted)
    document: Document = {
        "finish_reason": choice.finish_reason,
        "prompt_tokens": choice.prompt_tokens,
        "cached_tokens": choice.cached_tokens,
        "completion_tokens": choice.completion_tokens if choice.finish_reason is not None else len(emitted),
        "waiting_reason": None if choice.waiting_reason is None else str(choice.waiting_reason),
        "waits": waits_document(record, choice, now_ns),
        "tpot_ms": None if mean is None else ms(mean),
        "preemptions": [
            {
                "at_ms": ms(lost.at_ns - record.accepted_ns),
                "lost_tokens": lost.lost_tokens,
                "resumed_ms": ms(choice.admissions[index + 1].admitted_ns - record.accepted_ns)
                if index + 1 < len(choice.admissions)
                else None,
            }
            for index, lost in enumerate(choice.preemptions)
        ],
        "num_steps": choice.num_steps,
        "prefix": _prefix(choice),
        "kv_blocks": {
            "peak": max(choice.peak_blocks, len(choice.table)),
            "at_finish": len(choice.table) if choice.ended_ns else None,
        },
    }
    if full:
        ends = choice.columns("end_ns")[0]
        between = gaps(record, choice, emitted, recorder.pauses)
        document["token_times_ms"] = [ms(ends[index] - record.accepted_ns) for index in emitted]
        document["itl_ms"] = [ms(gap.duration_ns) for gap in between]
        document["itl_causes"] = [
            {"index": gap.index, "ms": ms(gap.duration_ns), "cause": str(gap.cause), "step": gap.step}
            | ({"with": list(gap.by)} if gap.by else {})
            for gap in between
            if gap.cause is not Cause.DECODE
        ]
        document["steps"] = _steps(record, choice)
        document["kv_blocks"]["table"] = [] if choice.ended_ns else list(choice.table)
        hit = document["prefix"]["hit_blocks"]
        document["prefix"]["blocks"] = [
            {"block": block, "state": "hit" if index < hit else "computed"} for index, block in enumerate(choice.table)
        ]
    return document


def _station(stay: Segment, record: RequestRecord) -> Document:
    return {
        "name": str(stay.station),
        "process": PROCESS[stay.station],
        "start_ms": ms(stay.start_ns - record.accepted_ns),
        "duration_ms": ms(stay.end_ns - stay.start_ns),
    }


def waits_document(record: RequestRecord, choice: ChoiceRecord, now_ns: int) -> list[Document]:
    """Every interval in the queue, also after preemptions; neighbours with the same reason are one."""
    found: list[Document] = []
    for wait in choice.wait_intervals(record.ended_ns):
        start_ms = ms(wait.since_ns - record.accepted_ns)
        duration_ms = ms((wait.end_ns or now_ns) - wait.since_ns)
        found.append({"reason": str(wait.reason), "start_ms": start_ms, "duration_ms": duration_ms})
    return found


def _prefix(choice: ChoiceRecord) -> Document:
    """Of the first admission."""
    if not choice.admissions:
        return {"hit_blocks": 0, "hit_tokens": 0, "stopped": None, "from_request": None}
    first = choice.admissions[0]
    return {
        "hit_blocks": len(first.hit),
        "hit_tokens": first.hit_tokens,
        "stopped": str(first.stopped),
        "from_request": choice.prefix_from,
    }


def _steps(record: RequestRecord, choice: ChoiceRecord) -> list[Document]:
    """One entry per step; two where a step recomputed the last lost positions and went on beyond them."""
    found: list[Document] = []
    for row, pieces in choice.work():
        for kind, position, tokens in pieces:
            found.append(
                {
                    "step": row.step,
                    "start_ms": ms(row.start_ns - record.accepted_ns),
                    "duration_ms": ms(row.end_ns - row.start_ns),
                    "kind": str(kind),
                    "from": position,
                    "to": position + tokens - 1,
                    "tokens": tokens,
                    "batch_tokens": row.batch_tokens,
                    "batch_requests": row.batch_requests,
                }
            )
    return found


def _sharing(recorder: Recorder, record: RequestRecord) -> list[str]:
    """Ids of the requests that were in a step with this one, as far back as steps are kept."""
    numbers = {step for choice in record.choices for step in choice.columns("step")[0]}
    ids = {share.request_id for step in recorder.steps_numbered(numbers) for share in step.shares}
    return sorted(name for name in ids if name is not None and name != record.request_id)


def step_document(recorder: Recorder, step: StepRecord) -> Document:
    report = step.report
    return {
        "step": step.number,
        "start_ms": ms(report.start_ns - recorder.origin_ns),
        "duration_ms": ms(report.instants()[-1] - report.start_ns),
        "parts": {
            "schedule": ms(report.schedule_ns),
            "prepare": ms(report.prepare_ns),
            "compute": ms(report.compute_ns),
            "sample": ms(report.sample_ns),
            "update": ms(report.update_ns),
        },
        "tokens": step.num_tokens,
        "budget": report.budget,
        "requests": [
            {"id": share.request_id, "kind": str(share.kind), "from": share.position, "tokens": share.tokens}
            | ({"choice": share.choice} if share.choice else {})
            for share in step.shares
        ],
        "admitted": list(step.admitted),
        "preempted": list(step.preempted),
        "kv": {"live": report.kv_live, "cached": report.kv_cached, "free": report.kv_free},
        "queue": report.num_waiting,
        "running": report.num_running,
        "evicted_blocks": report.num_evicted,
    }


def queue_document(recorder: Recorder, now_ns: int) -> list[Document]:
    return [
        {
            "id": record.request_id,
            "choice": choice.index,
            "position": position,
            "reason": str(choice.waiting_reason),
            "waited_ms": ms(now_ns - choice.waiting_since_ns),
            "priority": record.priority,
            "prompt_tokens": choice.prompt_tokens,
        }
        for position, (record, choice) in enumerate(recorder.queue())
    ]


def block_document(recorder: Recorder, block: int) -> list[Any]:
    """State, and the request that computed what it holds."""
    state = BlockState(recorder.kv.states[block])
    return [str(state), None if state is BlockState.FREE else recorder.owner(recorder.kv.owners[block])]


def kv_document(recorder: Recorder) -> Document:
    """Every block."""
    kv = recorder.kv
    blocks = [block_document(recorder, block) for block in range(kv.num_blocks)]
    return {"num_blocks": kv.num_blocks, "block_size": kv.block_size, **_kv_counts(recorder), "blocks": blocks}


def _kv_counts(recorder: Recorder) -> Document:
    kv = recorder.kv
    return {
        "live": kv.count(BlockState.LIVE) + kv.count(BlockState.SHARED),
        "cached": kv.count(BlockState.CACHED),
        "free": kv.count(BlockState.FREE),
    }


def changes_document(recorder: Recorder, changes: Changes, now_ns: int) -> Document:
    """What `event: delta` carries, but for the engine's counters."""
    return {
        "now_ms": ms(now_ns - recorder.origin_ns),
        "requests": [request_document(recorder, record, now_ns, full=False) for record in changes.requests],
        "steps": [step_document(recorder, step) for step in changes.steps],
        "queue": queue_document(recorder, now_ns),
        "kv": {
            **_kv_counts(recorder),
            "changes": [[block, *block_document(recorder, block)] for block in changes.blocks],
        },
    }
