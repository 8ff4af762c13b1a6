"""SentencePiece-style BPE (`tokenizer.ggml.model = llama`) from a GGUF vocabulary: scores instead of merges, bytes for unknown characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models

from sojourn.errors import BadModelFile
from sojourn.frontend.gguf_vocabulary import GGUFModel, GGUFVocabulary, TokenType

SPACE = "\u2581"  # how SentencePiece writes a space


def sentencepiece_model(metadata: Mapping[str, Any], tokens: GGUFVocabulary) -> GGUFModel:
    """Raises BadModelFile without scores or without the 256 byte tokens."""
    if tokens.scores is None:
        raise BadModelFile("the GGUF file has no tokenizer.ggml.scores, which a SentencePiece vocabulary needs")
    vocabulary = {text: n for text, n in tokens.ids.items() if tokens.types[n] != TokenType.CONTROL}
    if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]:
        raise BadModelFile(f"the vocabulary has no token for byte 0x{missing[0]:02X} ({len(missing)} bytes are missing)")
    model = models.BPE(vocab=vocabulary, merges=merges_by_score(vocabulary, tokens.scores), byte_fallback=True)
    return GGUFModel(
        Backend(model),
        lambda token_id: _bytes_of(tokens.texts, tokens.types, token_id),
        escape_spaces=True,
        add_space_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )


def merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges that make BPE do what SentencePiece does: join the neighbours whose union has the highest score, the leftmost on a tie.

    Every way to cut a token into two tokens is a merge; it ranks by the token's score. Source: Kudo and Richardson 2018, the BPE model.
    """
    merges: list[tuple[str, str]] = []
    for token in sorted(vocabulary, key=lambda text: -scores[vocabulary[text]]):
        merges += [(token[:n], token[n:]) for n in range(len(token) - 1, 0, -1) if token[:n] in vocabulary and token[n:] in vocabulary]
    return merges


def _bytes_of(texts: Sequence[str], types: Sequence[int], token_id: int) -> bytes:
    kind = types[token_id]
    text = texts[token_id]
    if kind == TokenType.BYTE:
        return bytes([int(text[3:5], 16)])
    if kind == TokenType.NORMAL:
        return text.replace(SPACE, " ").encode()
    if kind in (TokenType.UNUSED, TokenType.UNDEFINED):
        return b""
    return text.encode()
