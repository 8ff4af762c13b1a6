"""`python -m sojourn.cli`: the same as the `sojourn` command, for an interpreter whose scripts are not on the path."""

from __future__ import annotations

from sojourn.cli.main import run

run()
