"""Hands each completed record once to the views that count it. Owner of how far they have come.

The recorder calls nobody, so somebody has to pull: the server does so at every scrape and a few times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sojourn.timeline.recorder import Recorder
from sojourn.timeline.records import RequestRecord

logger = logging.getLogger("sojourn.timeline")

View = Callable[[RequestRecord], None]


class FinishedRecords:
    """What never reached the engine is left out, as it has no time to account for: the HTTP counters have it."""

    def __init__(self, recorder: Recorder, views: Sequence[View]) -> None:
        self._recorder = recorder
        self._views = views
        self._next = 0

    def pull(self) -> None:
        """Everything that completed since the last call."""
        finished = self._recorder.finished(self._next)
        self._next = finished.next
        if finished.missed:
            logger.warning("%d finished requests are missing from metrics and traces", finished.missed)
        for record in finished.records:
            if any(choice.received_ns for choice in record.choices):
                self._show(record)

    def _show(self, record: RequestRecord) -> None:
        for view in self._views:
            try:
                view(record)
            except Exception:  # a view that fails must not stop the server, whose loop this is
                logger.exception("%s is missing from metrics or traces", record.request_id)
