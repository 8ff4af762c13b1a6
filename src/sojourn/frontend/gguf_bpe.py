"""Byte-level BPE (`tokenizer.ggml.model = gpt2`) from a GGUF vocabulary: tokens, merges, the named pre-tokenizer.

Cuts no added tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.frontend.gguf_vocabulary import GGUFModel, GGUFVocabulary, TokenType
from sojourn.frontend.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from sojourn.frontend.vocabulary import byte_level_bytes, byte_token_bytes

_log = logging.getLogger(__name__)


def pre_tokenizer_of(metadata: Mapping[str, Any]) -> PreTokenizer:
    """The file's pre-tokenizer.

    Files from before the key existed get llama.cpp's default and a warning, since the ids may be wrong.
    """
    name = metadata.get("tokenizer.ggml.pre")
    if not name:
        _log.warning(
            "the GGUF file names no pre-tokenizer (tokenizer.ggml.pre); the default may split text in another way "
            "than the model learned"
        )
        name = "default"
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModel(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not implemented; known are {known}")
    return PRE_TOKENIZERS[name]


def byte_level_model(metadata: Mapping[str, Any], tokens: GGUFVocabulary, pre: PreTokenizer) -> GGUFModel:
    """Raises BadModelFile if there are no merges or one of them makes a token that doesn't exist."""
    lines = metadata.get("tokenizer.ggml.merges")
    if lines is None:
        raise BadModelFile("the GGUF file has no tokenizer.ggml.merges, which a byte-level BPE vocabulary needs")
    merges = [_pair(line) for line in lines]
    # Whole-piece lookup (ignore_merges) must not reach control tokens: text that spells one is plain text to this
    # model.
    products = {left + right for left, right in merges}
    control = {n for n, kind in enumerate(tokens.types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    vocabulary = {text: n for text, n in tokens.ids.items() if n not in control or text in products}
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # the library raises a bare Exception
        raise BadModelFile(f"tokenizer.ggml.merges and tokenizer.ggml.tokens do not fit together: {error}") from error
    backend = Backend(model)
    backend.pre_tokenizer = _splitting(pre.patterns)
    return GGUFModel(
        merge=lambda text: list(backend.encode(text, add_special_tokens=False).ids),
        bytes_of=lambda token_id: _bytes_of(tokens, token_id),
    )


def _pair(line: str) -> tuple[str, str]:
    at = line.find(" ", 1)  # the first character belongs to the left part even if it is a space
    if at < 0:
        raise BadModelFile(f"tokenizer.ggml.merges holds {line!r}, which is not a pair")
    return line[:at], line[at + 1 :]


def _splitting(patterns: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _bytes_of(tokens: GGUFVocabulary, token_id: int) -> bytes:
    text = tokens.texts[token_id]
    match tokens.types[token_id]:
        case TokenType.NORMAL:
            return byte_level_bytes(text)
        case TokenType.BYTE:
            return byte_token_bytes(text)
        case TokenType.UNUSED | TokenType.UNDEFINED:  # rows that only pad the embedding matrix: they have no text
            return b""
    return text.encode()
