"""A request record as text for the terminal: a line for each step, then the account of its time. Pure functions over
the JSON of GET /v1/requests/{id}; never prints.

    step 3  +     1 ms  prefill tokens 0-60    64 tokens of 4 requests
    step 4  +   147 ms  prefill tokens 61-121  64 tokens of 4 requests
    first token at +454 ms
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sojourn.timeline.shares import shares
from sojourn.timeline.table_texts import TEXTS, Language, Texts

Record = Mapping[str, Any]  # as GET /v1/requests/{id} answers

BAR_CELLS = 60
# A letter for each station of the bar: its own where that is free.
LETTERS = {
    "receive": "r", "render": "m", "tokenize": "t", "send": "s", "queue": "Q", "prefix": "x", "prefill": "P",
    "stall": "!", "preempted": "X", "sample": "S", "decode": "D", "return": "b", "detokenize": "k", "stream": "w",
    "finish": "f",
}  # fmt: skip
_REST = "?"
_OVER = ("finished", "aborted", "failed")


def table(record: Record, language: Language = "en") -> str:
    """The whole table, without a newline at its end."""
    texts = TEXTS[language]
    lines = [*_head(record, texts), ""]
    choices = record.get("choices") or []
    if len(choices) > 1:
        for choice in choices:
            lines.append(_choice(choice, texts))
            lines += _steps(choice, record, texts)
    else:
        lines += _steps(record, record, texts)
    lines += ["", *_account(record, texts), *_tail(record, texts)]
    return "\n".join(lines)


def _head(record: Record, texts: Texts) -> Iterator[str]:
    state = record["state"] if record.get("finish_reason") is None else f"{record['state']} ({record['finish_reason']})"
    left = record.get("state_when_left")
    state += texts.left.format(state=left) if left else ""
    yield "  ".join([record["request_id"], record["model"], record["endpoint"], state])
    yield texts.prompt.format(
        prompt=record["prompt_tokens"], cached=record["cached_tokens"], generated=record["completion_tokens"]
    )


def _choice(choice: Record, texts: Texts) -> str:
    reason = choice.get("finish_reason") or "..."
    return texts.choice.format(index=choice["index"], tokens=choice["completion_tokens"], reason=reason)


# -- steps ---------------------------------------------------------------------------------------------------------


def _steps(owner: Record, record: Record, texts: Texts) -> list[str]:
    """`owner` is the record itself or one of its choices. Events stand between the steps, in order of time."""
    steps: Sequence[Record] = owner["steps"]
    digits = max((len(str(step["step"])) for step in steps), default=1)
    rows = [_step_cells(step, digits, texts) for step in steps]
    aligned = _aligned(rows)
    dated = [(step["start_ms"], 1, line) for step, line in zip(steps, aligned, strict=True)]
    for event in owner["preemptions"]:
        lost = event["lost_tokens"]
        dated.append((event["at_ms"], 0, "  " + texts.preempted.format(ms=_whole(event["at_ms"]), lost=lost)))
        if event.get("resumed_ms"):
            dated.append((event["resumed_ms"], 0, "  " + texts.resumed.format(ms=_whole(event["resumed_ms"]))))
    if owner is record:
        first = _first_token_ms(record)
        if first is not None:
            # Behind the step that made it: the next one begins before the token has reached the client.
            done = [step["start_ms"] for step in steps if step["start_ms"] + step["duration_ms"] <= first]
            dated.append((max(done, default=first), 2, "  " + texts.first_token.format(ms=_whole(first))))
    return [line for *_, line in sorted(dated, key=lambda item: item[:2])]


def _first_token_ms(record: Record) -> float | None:
    """When the first token reached the client, which is the TTFT: the record's clock starts with the request."""
    ttft = record.get("ttft")
    return None if not ttft else float(ttft["total_ms"])


def _step_cells(step: Record, digits: int, texts: Texts) -> tuple[str, ...]:
    batch = texts.batch.format(tokens=step["batch_tokens"], requests=step["batch_requests"])
    alone = step["batch_requests"] == 1
    return (
        texts.step.format(step=f"{step['step']:{digits}d}"),
        f"+{step['start_ms']:6.0f} ms",
        _kind(step, texts),
        "" if alone else batch,
    )


def _kind(step: Record, texts: Texts) -> str:
    if step["kind"] == "decode":
        return texts.decode
    text = texts.recompute if step["kind"] == "recompute" else texts.chunk
    return text.format(first=step["from"], last=step["to"])


# -- the account ---------------------------------------------------------------------------------------------------


def _account(record: Record, texts: Texts) -> Iterator[str]:
    """TTFT as one stacked bar, with a line for each part that took time and one for what no part explains."""
    ttft = record.get("ttft")
    if not ttft:
        yield f"TTFT{texts.colon}{texts.no_token}"
        return
    rest = ttft["unattributed_ms"]
    durations = {**ttft["parts"], _REST: rest}
    yield f"TTFT {ttft['total_ms']:.1f} ms"
    cells = shares(durations, BAR_CELLS)
    yield "  [" + "".join(LETTERS.get(name, _REST) * count for name, count in cells.items()) + "]"
    tenths = shares(durations, 1000)
    rows = [
        (LETTERS.get(name, _REST), name, f"{ms:8.1f} ms", f"{tenths[name] / 10:5.1f} %")
        for name, ms in ttft["parts"].items()
        if round(ms, 1) > 0
    ]
    rows.append((_REST, texts.unattributed, f"{rest:8.1f} ms", f"{tenths[_REST] / 10:5.1f} %"))
    yield from _aligned(rows)


def _tail(record: Record, texts: Texts) -> Iterator[str]:
    if record.get("tpot_ms") is not None:
        yield texts.tpot.format(ms=f"{record['tpot_ms']:.1f}", count=len(record["itl_ms"]))
        causes: dict[str, list[float]] = defaultdict(list)
        for gap in record["itl_causes"]:
            causes[gap["cause"]].append(gap["ms"])
        if causes:
            gaps = (f"{cause} x{len(found)} ({max(found):.1f} ms)" for cause, found in sorted(causes.items()))
            yield f"  {texts.gaps}{texts.colon}{texts.comma.join(gaps)}"
    else:
        yield texts.no_tpot
    total = texts.end if record["state"] in _OVER else texts.so_far
    yield total.format(ms=f"{record['e2e_ms']:.1f}")
    waits: dict[str, float] = defaultdict(float)
    for wait in record["waits"]:
        waits[wait["reason"]] += wait["duration_ms"]
    told = texts.comma.join(f"{reason} {ms:.1f} ms" for reason, ms in waits.items())
    yield texts.waits + texts.colon + told if waits else texts.no_waits


# -- layout --------------------------------------------------------------------------------------------------------


def _whole(ms: float) -> str:
    return f"{ms:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Indented rows whose columns are as wide as their widest cell; a Chinese character takes two places."""
    if not rows:
        return []
    widths = [max(_width(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
