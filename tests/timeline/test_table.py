"""The table of `sojourn trace`: what each line says, that percentages add up, and that both languages say the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sojourn.timeline.shares import shares
from sojourn.timeline.table import BAR_CELLS, LETTERS, table
from tests.timeline.samples import SHORTS, long_record

STATIONS = {
    "receive", "render", "tokenize", "send", "queue", "prefix", "prefill", "stall", "preempted", "sample", "decode",
    "return", "detokenize", "stream", "finish",
}  # fmt: skip


def test_a_line_for_each_step_with_its_chunk() -> None:
    lines = table(long_record()).splitlines()
    assert [line for line in lines if "prefill tokens" in line] == [
        "  step  3  +     2 ms  prefill tokens 0-60     64 tokens of 4 requests",
        "  step  4  +   148 ms  prefill tokens 61-121   64 tokens of 4 requests",
        "  step  5  +   296 ms  prefill tokens 122-140  4 tokens of 4 requests",
    ]
    assert sum("decode 1 token" in line for line in lines) == 5
    assert "prompt 141 tokens, 0 of them cached; 6 generated" in lines


def test_the_first_token_stands_behind_the_step_that_made_it() -> None:
    lines = table(long_record()).splitlines()
    (at,) = [i for i, line in enumerate(lines) if "first token at +444 ms" in line]
    assert "tokens 122-140" in lines[at - 1]
    assert "decode" in lines[at + 1]


def test_chinese_speaks_as_the_figure_does() -> None:
    lines = table(long_record(), "zh").splitlines()
    assert "  第  3 步  +     2 ms  prefill 第 0～60 个 token     4 个请求共 64 个 token" in lines
    assert "  第  6 步  +   454 ms  decode 1 个 token             4 个请求共 4 个 token" in lines
    assert "  第一个 token 出现在 +444 ms" in lines


@pytest.mark.parametrize("language", ["en", "zh"])
def test_both_languages_hold_the_same_numbers(language: Any) -> None:
    def numbers(text: str) -> list[str]:
        return sorted(re.findall(r"\d+(?:\.\d+)?", text))

    assert numbers(table(long_record(), language)) == numbers(table(long_record()))


def test_the_bar_has_a_letter_for_each_share_and_the_percentages_add_up() -> None:
    lines = table(long_record()).splitlines()
    (bar,) = [line for line in lines if line.startswith("  [")]
    assert len(bar.strip("[ ]")) == BAR_CELLS
    assert bar.count("P") == 60
    percentages = [float(line.split()[-2]) for line in lines if line.endswith(" %")]
    assert sum(percentages) == pytest.approx(100, abs=0.25)  # parts under 0.05 ms have no line of their own
    assert [line.split()[1] for line in lines if line.endswith(" %")][-1] == "unattributed"


def test_shares_always_add_up() -> None:
    for units in (1, 7, 60, 1000):
        assert sum(shares({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": -5.0}, units).values()) == units
    assert shares({"a": 0.0, "b": 0.0}, 10) == {"a": 0, "b": 0}


def test_every_station_has_a_letter_of_its_own() -> None:
    assert set(LETTERS) == STATIONS
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_waits_causes_and_preemptions_are_told() -> None:
    record = long_record(preemptions=[{"at_ms": 600.0, "lost_tokens": 142, "resumed_ms": 690.0}])
    record["steps"][6]["kind"] = "recompute"
    text = table(record)
    assert "waited: kv_blocks 0.1 ms" in text
    assert "slower than a plain decode step: prefill_in_step x1 (86.0 ms)" in text
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if "preempted at +600 ms, 142 tokens to compute again" in line]
    assert "step  7" in lines[at - 1]
    assert "resumed at +690 ms" in text
    assert "recompute tokens 144-144" in text


def test_a_request_without_a_token_says_so() -> None:
    record = long_record(
        state="aborted", state_when_left="queued", finish_reason=None, ttft=None, tpot_ms=None,
        itl_ms=[], itl_causes=[], steps=[], waits=[], completion_tokens=0,
    )  # fmt: skip
    text = table(record)
    assert "aborted; queued when the client left" in text
    assert "TTFT: no token yet" in text
    assert "TPOT: needs at least two tokens" in text
    assert "waited for nothing" in text


def test_a_live_request_is_told_so_far() -> None:
    text = table(long_record(state="running", finish_reason=None))
    assert "849.3 ms so far" in text
    assert "end to end" not in text


def test_each_choice_has_its_own_steps() -> None:
    record = long_record()
    share = {name: record[name] for name in ("finish_reason", "completion_tokens", "steps", "preemptions")}
    record["choices"] = [{"index": i, "id": SHORTS[i], **share} for i in range(2)]
    text = table(record)
    assert "choice 0: 6 tokens, length" in text
    assert "choice 1: 6 tokens, length" in text
    assert text.count("prefill tokens 61-121") == 2
