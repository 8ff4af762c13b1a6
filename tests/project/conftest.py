"""The project's own source as the subject of tests: files, parsed once. Tests here read code, they never run it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class SourceFile:
    path: Path  # relative to the repository root
    module: str  # dotted, without the leading "sojourn."; "" for the package itself
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """First part of the module's name: "core" for core.scheduler, "config" for config."""
        return self.module.split(".")[0]

    @property
    def num_lines(self) -> int:
        return self.text.count("\n")


def _read(path: Path) -> SourceFile:
    parts = path.relative_to(ROOT / "src" / "sojourn").with_suffix("").parts
    module = ".".join(part for part in parts if part != "__init__")
    text = path.read_text(encoding="utf-8")
    return SourceFile(path.relative_to(ROOT), module, text, ast.parse(text))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[SourceFile]:
    """Every Python file of the product."""
    return [_read(path) for path in sorted((ROOT / "src" / "sojourn").rglob("*.py"))]
