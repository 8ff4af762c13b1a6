"""Progress bars on stderr for what takes longer than a second: fetching a model and loading it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

STAGES = "{task.description}"


class LoadingBar:
    """Shows the engine's stages while it loads. `update` fits the engine's on_progress."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn(STAGES),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: TaskID | None = None

    def update(self, stage: str, fraction: float) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(stage, total=1.0)
        self._progress.update(self._task, description=stage, completed=fraction)

    def close(self) -> None:
        """Idempotent; the bar leaves no trace."""
        self._progress.stop()
