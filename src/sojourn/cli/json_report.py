"""Writes what a benchmark measured to the file that --json names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sojourn.errors import StartupError


def write_report(path: Path, content: Any) -> None:
    """Strict JSON: a figure that does not exist (NaN) becomes null. Raises StartupError."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except OSError as error:
        raise StartupError(f"--json: can't write {path}: {error}") from error
