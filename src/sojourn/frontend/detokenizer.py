"""Turns a growing sequence of token ids into text, a whole code point at a time. Owns the bytes of the unfinished one.

Knows no stop strings.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from sojourn.frontend.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """All pushes and the flush, joined, equal `tokenizer.decode` of all ids. One per output; not shared between
    threads.

    `continues_text`: the ids continue a text, so a SentencePiece space in front separates words and stays (a raw
    completion; not a chat reply).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues_text: bool = False) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._strip = tokenizer.strip_leading_space and not continues_text  # until the first byte has come
        self._unfinished = b""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        data = b""
        for token_id in token_ids:
            if token_id not in self._hidden:
                data += self._token_bytes(token_id)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        data = self._unfinished + data
        # What `codecs.getincrementaldecoder` does, without its layers of Python for each token.
        text, used = utf_8_decode(data, "replace", False)
        self._unfinished = data[used:]
        return text

    def flush(self) -> str:
        """What is left at the end: one U+FFFD if the ids stop inside a code point."""
        text = self._unfinished.decode("utf-8", "replace")
        self._unfinished = b""
        return text
