"""What a chat template hands to the tokenizer. No logic."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A chat as one text.

    `literal_spans`: sorted, disjoint [begin, end) ranges where message content spells a control token that must stay
    text.
    """

    text: str
    literal_spans: list[tuple[int, int]] = field(default_factory=list)
