"""Reports as text. Formats only."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.bench.http_load import LoadReport
from sojourn.bench.offline import DecodeReport, PrefillReport
from sojourn.bench.spread import Spread


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def load_table(report: LoadReport) -> str:
    """Counts and rates, then a table of latencies."""
    cached = f" ({report.cached_tokens} from the prefix cache)" if report.cached_tokens else ""
    failed = "".join(f"\nfailed: {error}" for error in report.errors)
    latencies = table(
        [
            ("milliseconds", "p50", "p90", "p99", "max"),
            ("first token (TTFT)", *_cells(report.ttft_ms)),
            ("per output token (TPOT)", *_cells(report.tpot_ms)),
            ("between events (ITL)", *_cells(report.itl_ms)),
            ("whole request", *_cells(report.latency_ms)),
        ]
    )
    return (
        f"requests  {report.requests - report.failed} of {report.requests} succeeded in {report.wall_s:.2f} s\n"
        f"tokens    {report.prompt_tokens} prompt{cached}, {report.output_tokens} output\n"
        f"rate      {report.output_tok_s:.1f} output tok/s, {report.total_tok_s:.1f} tok/s in all\n"
        f"{latencies}{failed}"
    )


def decode_table(reports: Sequence[DecodeReport], bandwidth: float) -> str:
    """A row for each number of streams. `bandwidth` is the measured read bandwidth in bytes per second."""
    rows: list[Sequence[str]] = [
        ("streams", "tok/s", "step ms", "forward", "sample", "other", "other %", "MB/step", "GB/s", "of bandwidth"),
    ]
    for each in reports:
        rate = each.bytes_per_step / each.step_s
        milliseconds = (each.step_s, each.forward_s, each.sample_s, each.other_s)
        rows.append(
            (
                str(each.streams),
                f"{each.tok_s:.1f}",
                *(f"{1e3 * value:.3f}" for value in milliseconds),
                f"{each.other_s / each.step_s:.1%}",
                f"{each.bytes_per_step / 1e6:.1f}",
                f"{rate / 1e9:.1f}",
                f"{rate / bandwidth:.0%}",
            )
        )
    return table(rows)


def prefill_table(reports: Sequence[PrefillReport]) -> str:
    rows: list[Sequence[str]] = [("prefill of", "tok/s", "ms")]
    rows += [(f"{each.tokens} tokens", f"{each.tok_s:.1f}", f"{1e3 * each.seconds:.1f}") for each in reports]
    return table(rows)


def _cells(spread: Spread) -> tuple[str, ...]:
    return tuple(f"{value:.1f}" for value in (spread.p50, spread.p90, spread.p99, spread.max))
