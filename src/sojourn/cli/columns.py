"""Rows as aligned columns of plain text: they survive a pipe, and no path is cut to fit a terminal. Never prints."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], *, gap: str = "  ") -> str:
    """One line per row; every column but the last is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
