"""The account inside a reply: its `timings` object and its Server-Timing header. Owns no state."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.records.life import Station
from sojourn.timeline.account import end_to_end, segments, token_rows, tpot_ns, ttft
from sojourn.timeline.documents import Document, account_document, ms, waits_document
from sojourn.timeline.records import ChoiceRecord, RequestRecord


def timings_document(record: RequestRecord, now_ns: int) -> Document:
    """What `"timings": true` adds to a reply: llama.cpp's names, then the account."""
    stays = segments(record, now_ns)
    account = ttft(record, stays)
    whole = end_to_end(record, stays, now_ns)
    choice = record.first_choice or ChoiceRecord("", 0, 0)
    emitted = token_rows(choice)
    computed = choice.prompt_tokens - choice.cached_tokens
    prompt_ms = ms(whole.parts[Station.PREFILL])
    predicted_ms = _decode_ms(choice, emitted)
    predicted = sum(each.completion_tokens for each in record.choices)
    return {
        "cache_n": choice.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, computed),
        "prompt_per_second": _ratio(1000.0 * computed, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, predicted),
        "predicted_per_second": _ratio(1000.0 * predicted, predicted_ms),
        "ttft": None if account is None else account_document(account),
        "e2e": account_document(whole),
        "e2e_ms": ms(whole.total_ns),
        "tpot_ms": None if (mean := tpot_ns(choice, emitted)) is None else ms(mean),
        "waits": waits_document(record, choice, now_ns),
        "preemptions": len(choice.preemptions),
        "cached_tokens": choice.cached_tokens,
        "steps": choice.num_steps,
    }


def server_timing(record: RequestRecord, now_ns: int) -> str:
    """The header's value: stations that took any time, in order, then the total. Browsers draw it."""
    whole = end_to_end(record, segments(record, now_ns), now_ns)
    entries = [f"{station};dur={ms(part)}" for station, part in whole.parts.items() if part >= 500]
    return ", ".join([*entries, f"total;dur={ms(whole.total_ns)}"])


def _decode_ms(choice: ChoiceRecord, emitted: Sequence[int]) -> float:
    """From the first token to the last."""
    return ms(choice.row(emitted[-1]).end_ns - choice.row(emitted[0]).end_ns) if emitted else 0.0


def _ratio(amount: float, by: float) -> float:
    return round(amount / by, 3) if by else 0.0
