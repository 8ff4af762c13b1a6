"""Progress bars on stderr for what takes longer than a second: fetching a model and loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from sojourn.weights.fetch import cached, resolve

NAME = TextColumn("{task.description}")


def fetch(model: str) -> Path:
    """The model's path, fetched with a progress bar where it is not here yet. Raises StartupError."""
    path = cached(model)
    if path is not None:
        return path
    with ProgressBar(DownloadColumn(), TransferSpeedColumn()) as bar:
        return resolve(model, progress=bar.update)


class ProgressBar:
    """One bar that goes through stages. Where stderr is no terminal, a line at the beginning of each stage instead."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            NAME,
            BarColumn(),
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._stage: str | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, stage: str, done: float, total: float | None = 1.0) -> None:
        """`done` of `total` (None: unknown). Fits what the engine and the downloads report."""
        if stage != self._stage:
            self._begin(stage)
        assert self._task is not None  # _begin has set it
        self._progress.update(self._task, completed=done, total=total)

    def _begin(self, stage: str) -> None:
        self._stage = stage
        if self._task is None:
            self._progress.start()
        else:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(stage)
        if not self._console.is_terminal:
            self._console.print(f"{stage} ...", highlight=False)
