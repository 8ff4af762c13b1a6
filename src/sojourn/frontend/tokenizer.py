"""Text to token ids and back, for one model. Immutable after loading, so any thread may use it.

Owns no template and no stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sojourn.frontend.gguf_tokenizer import build_gguf_tokenizer
from sojourn.frontend.hf_tokenizer import build_hf_tokenizer
from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.vocabulary import Encoder, Vocabulary


def load_tokenizer(*, directory: Path | None = None, metadata: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face directory (tokenizer.json) or of GGUF metadata; exactly one is given.

    Raises ModelNotFound without tokenizer.json, BadModelFile for a broken one, UnsupportedModel for a kind that isn't
    implemented.
    """
    if (directory is None) == (metadata is None):
        raise ValueError("give a directory or GGUF metadata, not both")
    if directory is not None:
        return Tokenizer(*build_hf_tokenizer(directory))
    assert metadata is not None
    return Tokenizer(*build_gguf_tokenizer(metadata))


class Tokenizer:
    """One model's vocabulary and the rules around it."""

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder) -> None:
        special = vocabulary.special
        self.vocab_size = len(vocabulary.texts)
        self.bos_token_id = special.bos
        self.eos_token_ids = special.eos
        self.special_ids = special.special
        self.named_tokens = dict(special.named)  # "bos_token" -> text
        self.visible_added_tokens = special.visible
        self.add_bos = bool(special.prefix)
        self.strip_leading_space = vocabulary.strip_leading_space
        self._special = special
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._bytes: dict[int, bytes] = {}  # filled on use; a race only computes an entry twice

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` puts the model's BOS in front, unless the text already begins with it, and its EOS behind
        if the model wants one.
        `parse_special` reads control tokens written in the text as such, as raw completions do; otherwise they are
        plain text.
        """
        ids = self._encoder.encode(_well_formed(text), parse_special=parse_special)
        if not add_special_tokens:
            return ids
        return [*_missing_prefix(self._special.prefix, ids), *ids, *self._special.suffix]

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Token ids of a rendered chat.

        Control tokens count where the template wrote them, never inside `literal_spans`; exactly one BOS.
        """
        if prompt.literal_spans:
            ids = self._encoder.encode_guarded(_well_formed(prompt.text), prompt.literal_spans)
        else:
            ids = self._encoder.encode(_well_formed(prompt.text), parse_special=True)
        return [*_missing_prefix(self._special.chat_prefix, ids), *ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`.

        Bytes that are no UTF-8 become U+FFFD, one for each maximal ill-formed part, as Unicode recommends.
        """
        hidden = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in hidden])
        if self.strip_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for, which may be part of a code point.

        Empty for ids beyond the vocabulary (padding rows).
        """
        data = self._bytes.get(token_id)
        if data is None:
            if not 0 <= token_id < self.vocab_size or self._vocabulary.texts[token_id] is None:
                return b""
            data = self._bytes[token_id] = self._vocabulary.bytes_of(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """The token as readable text, with U+FFFD where it holds only part of a code point.

        Special tokens by their name.
        """
        if token_id in self.special_ids:
            return self._vocabulary.texts[token_id] or ""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")


def _missing_prefix(prefix: tuple[int, ...], ids: Sequence[int]) -> tuple[int, ...]:
    """`prefix`, or nothing where the ids already begin with it: a prompt has exactly one BOS."""
    return () if tuple(ids[: len(prefix)]) == prefix else prefix


def _well_formed(text: str) -> str:
    """`text` with each lone surrogate, which JSON can carry and UTF-8 cannot, replaced by U+FFFD.

    The length stays the same.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text
