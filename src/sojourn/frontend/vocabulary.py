"""What a tokenizer knows about its tokens: texts, bytes, kinds. Immutable after construction.

Never encodes or decodes a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: visible Latin-1 characters stand for themselves, the rest follow from
    U+0100 on.

    Source: Radford et al. 2019, the encoder published with GPT-2; every byte-level BPE vocabulary uses it.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in visible)
    return {**{byte: chr(byte) for byte in visible}, **{byte: chr(0x100 + n) for n, byte in enumerate(hidden)}}


_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def byte_level_bytes(text: str) -> bytes:
    """Bytes of a byte-level BPE token; a token with a character outside the alphabet stands for its own UTF-8 bytes."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in text])
    except KeyError:
        return text.encode()


def byte_token_bytes(text: str) -> bytes:
    """The byte of a SentencePiece byte token such as `<0x0A>`; any other token stands for its UTF-8 bytes."""
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.encode()


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Which ids mean something to the engine rather than to the reader."""

    bos: int | None
    eos: tuple[int, ...]  # every id that ends generation, the principal one first
    special: frozenset[int]  # hidden by skip_special_tokens, never read from message content
    named: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>": what chat templates may refer to
    visible: tuple[str, ...] = ()  # texts of the other added tokens: always tokens, and part of the text
    prefix: tuple[int, ...] = ()  # put before a raw prompt: BOS, if the model wants it
    suffix: tuple[int, ...] = ()  # put behind a raw prompt: EOS, for the few models that want it
    chat_prefix: tuple[int, ...] = ()  # put before a rendered chat that does not begin with it


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token id -> text and bytes. `bytes_of` is called once per id; the tokenizer caches what it returns."""

    texts: Sequence[str | None]  # None: an id inside the range that no token has
    bytes_of: Callable[[int], bytes]
    special: SpecialTokens
    # SentencePiece: the space that encoding put before the first word isn't part of the text
    strip_leading_space: bool = False


class Encoder(Protocol):
    """Turns text into ids. Thread-safe; adds no BOS or EOS."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`; control tokens written in it are tokens if `parse_special`, plain text otherwise."""

    def encode_guarded(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of `text` with control tokens parsed, except where they overlap one of the sorted, disjoint
        `literal_spans`.
        """
