"""Finds the texts of added tokens inside a string, as llama.cpp does: the longest token first, wherever it stands.

Owns no ids' meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

_MAX_PREFIX_CHARS = 50_000_000


class TokenSplitter:
    """Splits text at the given token texts. Immutable, so any thread may use it."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in ids.items() if text}
        self._pattern = _compiled(self._ids) if self._ids else None
        # Leftmost-longest matching equals longest-first unless two tokens can overlap; then the slow way is taken.
        self._longest_first = sorted(self._ids, key=len, reverse=True) if _may_overlap(self._ids) else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yields (start, end, token id) of each token in `text`, in order and disjoint."""
        if self._pattern is None:
            return
        if self._longest_first is None or self._pattern.search(text) is None:
            for match in self._pattern.finditer(text):
                yield match.start(), match.end(), self._ids[match.group()]
            return
        yield from self._find_longest_first(text, self._longest_first)

    def _find_longest_first(self, text: str, tokens: Sequence[str]) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        free = [(0, len(text))]  # stretches that no token has claimed yet
        for token in tokens:
            if token not in text:
                continue
            remaining: list[tuple[int, int]] = []
            for begin, end in free:
                at = text.find(token, begin, end)
                while at >= 0:
                    found.append((at, at + len(token), self._ids[token]))
                    remaining.append((begin, at))
                    begin = at + len(token)
                    at = text.find(token, begin, end)
                remaining.append((begin, end))
            free = remaining
        return sorted(found)


def mask_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """`text` with NULs in the spans, so that no token is found there; every other character keeps its place."""
    parts: list[str] = []
    at = 0
    for begin, end in spans:
        parts += [text[at:begin], "\0" * (end - begin)]
        at = end
    parts.append(text[at:])
    return "".join(parts)


def _compiled(texts: Iterable[str]) -> re.Pattern[str]:
    try:
        return re.compile(_trie_pattern(texts))
    except RecursionError:  # texts that begin alike for hundreds of characters; a plain list is slower but has no depth
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


class _Node(dict[str, "_Node"]):
    """A trie node: next character -> node; the key "" marks the end of a text."""


def _trie_pattern(texts: Iterable[str]) -> str:
    """A regular expression for the longest of `texts`, in time linear in the text however many there are."""
    root = _Node()
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, _Node())
        node[""] = _Node()
    return _node_pattern(root)


def _node_pattern(node: _Node) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:  # a chain needs neither a group nor recursion
        char, node = next(iter(node.items()))
        prefix += re.escape(char)
    branches = [re.escape(char) + _node_pattern(child) for char, child in node.items() if char]
    if not branches:
        return prefix
    group = "(?:" + "|".join(branches) + ")"
    return prefix + (group + "?" if "" in node else group)


def _may_overlap(texts: Iterable[str]) -> bool:
    """Whether the end of one text can be the beginning of another.

    Runs of the same character don't count: both orders split them alike.
    """
    if sum(len(text) ** 2 for text in texts) > _MAX_PREFIX_CHARS:
        return True  # too much to find out; the slow way is right for any tokens
    runs = {text for text in texts if len(set(text)) == 1}
    others = [text for text in texts if text not in runs]
    other_prefixes = {text[:n] for text in others for n in range(1, len(text) + 1)}
    run_prefixes = {text[:n] for text in runs for n in range(1, len(text) + 1)}
    return any(
        text[n:] in other_prefixes or text[n:] in run_prefixes for text in others for n in range(1, len(text))
    ) or any(text[n:] in other_prefixes for text in runs for n in range(1, len(text)))
