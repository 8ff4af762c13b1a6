"""Cuts a stream of text at the earliest stop string. Owns the held-back tail; knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Releases text as early as it can: only a tail that may still become a stop string is held back. One per output.

    The match that completes first wins, the longest of those that complete together: so the result does not depend on
    how the text is cut into pushes.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include_in_output
        self._held = ""
        # Only these characters can begin a stop string, so most text needs no further look.
        self._starts = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)

    def push(self, text: str) -> str:
        """The text that may be shown now. Once a stop string has matched, nothing more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        if (match := self._find(text)) is not None:
            self._held = ""
            end, self.matched = match
            return text[:end] if self._include else text[: end - len(self.matched)]
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text when the output ends without a match; nothing after one."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """(end, stop) of the match that completes first."""
        found = [(at + len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found, key=lambda match: (match[0], -len(match[1])), default=None)

    def _held_length(self, text: str) -> int:
        """Length of the longest tail that is a proper prefix of a stop string."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._starts and any(stop.startswith(text[at:]) for stop in self._stops):
                return len(text) - at
        return 0
