"""A tokenizer whose ids can be read: special tokens, one token per byte, and a few words of several characters."""

from __future__ import annotations

from collections.abc import Sequence

from sojourn.frontend.tokenizer import Tokenizer
from sojourn.frontend.vocabulary import SpecialTokens, Vocabulary

EOS, SPECIAL, FIRST_BYTE, FIRST_WORD = 0, 1, 2, 258
WORDS = ["alpha", " be", "ta", " gam", "ma", " delta", "Hi", " Use", "r:"]
VOCAB_SIZE = FIRST_WORD + len(WORDS)


class _ByteEncoder:
    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        return byte_ids(text)

    def encode_guarded(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> list[int]:
        return byte_ids(text)


def byte_ids(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def word_ids(*words: str) -> list[int]:
    return [FIRST_WORD + WORDS.index(word) for word in words]


def byte_tokenizer() -> Tokenizer:
    texts = ["<eos>", "<special>", *(f"byte {byte}" for byte in range(256)), *WORDS]

    def bytes_of(token_id: int) -> bytes:
        is_byte = FIRST_BYTE <= token_id < FIRST_WORD
        return bytes([token_id - FIRST_BYTE]) if is_byte else texts[token_id].encode()

    special = SpecialTokens(bos=None, eos=(EOS,), special=frozenset({EOS, SPECIAL}))
    return Tokenizer(Vocabulary(texts, bytes_of, special), _ByteEncoder())
