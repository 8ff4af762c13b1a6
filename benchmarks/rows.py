"""The rows of the comparison: their loads, the figure each is judged by, and what it must reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sojourn.bench.http_load import Load, LoadReport

SMOLLM2 = "smollm2:135m"


@dataclass(frozen=True, kw_only=True)
class Row:
    key: str
    title: str
    model: str
    load: Load
    figure: Callable[[LoadReport], float]
    unit: str
    lower_is_better: bool = False
    slots: int = 1  # of llama-server: no more than the row uses, its best setting
    llama: float  # least ratio to llama-server
    openvino: float | None = None  # least ratio to OpenVINO GenAI, where it takes part

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        return theirs / ours if self.lower_is_better else ours / theirs

    def small(self) -> Row:
        """The same with so little work that it shows only that everything runs."""
        load = self.load
        return replace(
            self,
            load=replace(
                load,
                requests=min(load.requests, load.concurrency or 1),
                prompt_words=min(load.prompt_words, 60),
                prefix_words=min(load.prefix_words, 60),
                max_tokens=min(load.max_tokens, 6),
            ),
        )


def decode_speed(report: LoadReport) -> float:
    """Tokens a second of one stream after its first token."""
    return 1e3 / report.tpot_ms.p50


def output_rate(report: LoadReport) -> float:
    return report.output_tok_s


def total_rate(report: LoadReport) -> float:
    return report.total_tok_s


def first_token_ms(report: LoadReport) -> float:
    return report.ttft_ms.p50


def _one_stream(model: str, **needs: float) -> Row:
    return Row(
        key=f"one:{model}",
        title="1 stream",
        model=model,
        load=Load(requests=3, concurrency=1, max_tokens=64),
        figure=decode_speed,
        unit="tok/s",
        **needs,
    )


def _prefill(model: str, **needs: float) -> Row:
    return Row(
        key=f"prefill:{model}",
        title="prefill of 800 words, TTFT",
        model=model,
        load=Load(requests=3, concurrency=1, prompt_words=800, prompt_spread=0, max_tokens=1),
        figure=first_token_ms,
        unit="ms",
        lower_is_better=True,
        **needs,
    )


def _streams(count: int, **needs: float) -> Row:
    return Row(
        key=f"streams{count}",
        title=f"{count} streams, prefill included",
        model=SMOLLM2,
        load=Load(requests=2 * count, concurrency=count, max_tokens=64),
        figure=output_rate,
        unit="tok/s",
        slots=16,
        **needs,
    )


QWEN, GEMMA = "qwen2.5-coder:0.5b", "gemma3:270m"
ROWS = (
    _one_stream(SMOLLM2, llama=2.5, openvino=2.2),
    _streams(8, llama=5.5, openvino=1.5),
    _streams(16, llama=8.0, openvino=1.4),
    _prefill(SMOLLM2, llama=12.0, openvino=1.25),
    Row(
        key="shared",
        title="16 requests, 600 words shared, 8 at once",
        model=SMOLLM2,
        load=Load(requests=16, concurrency=8, prefix_words=600, max_tokens=64),
        figure=total_rate,
        unit="tok/s",
        slots=16,
        llama=10.0,
    ),
    _one_stream(QWEN, llama=1.5),
    _prefill(QWEN, llama=4.0),
    _one_stream(GEMMA, llama=1.4),
    _prefill(GEMMA, llama=4.0),
)
# Of Sojourn alone: a running stream while these prompts arrive back to back.
LONG_PROMPTS = Load(requests=6, concurrency=1, prompt_words=2000, prompt_spread=0, max_tokens=1)
