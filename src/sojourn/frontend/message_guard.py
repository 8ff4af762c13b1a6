"""Keeps control tokens in message content from acting as such: hides them from the template, then says where they are
in the prompt.

A template may cut, trim and join content as it likes, so a position in a message says nothing about the prompt. Hence
each
control token that a message spells is replaced by one private-use character before rendering, and restored after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.token_splitter import TokenSplitter

T = TypeVar("T")
_PRIVATE_USE = range(0x10FFFD, 0x100000 - 1, -1)  # supplementary private use area B
_PRIVATE_CHAR = re.compile("[\U00100000-\U0010fffd]")


class MessageGuard:
    """The control tokens of one model. Immutable."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        self._tokens = list(special_tokens)
        self._splitter = TokenSplitter({token: n for n, token in enumerate(self._tokens)})

    def stand_ins(self, values: Any, *, source: str) -> StandIns:
        """Stand-ins for the control tokens that the strings inside `values` spell, for a template with this source."""
        strings = list(strings_in(values))
        found = {n for text in strings for _, _, n in self._splitter.find(text)}
        used = {char for text in (source, *strings) if not text.isascii() for char in _PRIVATE_CHAR.findall(text)}
        free = (chr(point) for point in _PRIVATE_USE if chr(point) not in used)
        return StandIns(self._splitter, {n: next(free) for n in sorted(found)}, self._tokens, next(free))


class StandIns:
    """One rendering's private-use characters. `marker` is one more that neither the request nor the template holds."""

    def __init__(self, splitter: TokenSplitter, chars: Mapping[int, str], tokens: Sequence[str], marker: str) -> None:
        self.marker = marker
        self._splitter = splitter
        self._chars = chars
        self._tokens = {char: tokens[n] for n, char in chars.items()}

    def hide(self, value: T) -> T:
        """A copy of `value` whose strings hold stand-ins for control tokens."""
        return cast(T, _replace(value, self._splitter, self._chars)) if self._chars else value

    def restore(self, text: str) -> RenderedPrompt:
        """`text` with the control tokens back in place, and where they are."""
        if not self._tokens:
            return RenderedPrompt(text)
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        length = 0
        for part in re.split(f"([{''.join(self._tokens)}])", text):
            token = self._tokens.get(part)
            parts.append(part if token is None else token)
            if token is not None:
                spans.append((length, length + len(token)))
            length += len(parts[-1])
        return RenderedPrompt("".join(parts), spans)


def strings_in(value: Any) -> Iterator[str]:
    """Every string inside nested lists and mappings, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from strings_in(item)


def _replace(value: Any, splitter: TokenSplitter, chars: Mapping[int, str]) -> Any:
    if isinstance(value, str):
        parts: list[str] = []
        at = 0
        for begin, end, n in splitter.find(value):
            parts += [value[at:begin], chars[n]]
            at = end
        return "".join([*parts, value[at:]])
    if isinstance(value, Mapping):
        return {_replace(key, splitter, chars): _replace(item, splitter, chars) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_replace(item, splitter, chars) for item in value]
    return value
