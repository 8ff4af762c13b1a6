"""Builds a tokenizer from the vocabulary inside a GGUF file (`tokenizer.ggml.*`). Reads no file and decodes nothing.

Where llama.cpp and `transformers` give different ids for such a vocabulary, llama.cpp decides. Two models are built:
`gpt2`, byte-level BPE (gguf_bpe.py), and `llama`, SentencePiece with scores and byte fallback (gguf_spm.py); others are
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.frontend.gguf_bpe import byte_level_model, pre_tokenizer_of
from sojourn.frontend.gguf_spm import SPACE, sentencepiece_model
from sojourn.frontend.gguf_vocabulary import GGUFModel, GGUFVocabulary, TokenType, special_tokens
from sojourn.frontend.token_splitter import TokenSplitter, mask_spans
from sojourn.frontend.vocabulary import Vocabulary

# llama.cpp's ids for files that do not name theirs.
_GPT2_IDS = {"bos": 11, "eos": 11}
_LLAMA_IDS = {"bos": 1, "eos": 2, "unknown": 0}


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> tuple[Vocabulary, GGUFEncoder]:
    """The vocabulary and encoder that `metadata` describes.

    Raises UnsupportedModel for a tokenizer model or pre-tokenizer that isn't implemented, BadModelFile for a vocabulary
    that contradicts itself.
    """
    name = metadata.get("tokenizer.ggml.model")
    if name is None:
        raise BadModelFile("the GGUF file has no tokenizer.ggml.model: it holds no vocabulary")
    if name not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"tokenizer model {name!r} is not implemented; gpt2 (byte-level BPE) and llama (SentencePiece) are"
        )
    tokens = GGUFVocabulary.from_metadata(metadata)
    if name == "gpt2":
        pre = pre_tokenizer_of(metadata)
        model = byte_level_model(metadata, tokens, pre)
        special = special_tokens(metadata, tokens, default_ids=_GPT2_IDS, default_add_bos=pre.add_bos)
    else:
        model = sentencepiece_model(metadata, tokens)
        special = special_tokens(metadata, tokens, default_ids=_LLAMA_IDS, default_add_bos=True)
    vocabulary = Vocabulary(tokens.texts, model.bytes_of, special, strip_leading_space=model.add_space_prefix)
    return vocabulary, GGUFEncoder(model, tokens, special.special)


class GGUFEncoder:
    """Cuts text at added tokens, then merges what lies between. Immutable: any thread may use it."""

    def __init__(self, model: GGUFModel, tokens: GGUFVocabulary, special: frozenset[int]) -> None:
        added = tokens.of_types(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN) | {
            tokens.texts[n]: n for n in special
        }
        self._model = model
        self._added = TokenSplitter(added)
        # User-defined tokens belong to the text (runs of newlines, HTML tags): they are always tokens.
        self._user_defined = TokenSplitter({text: n for text, n in added.items() if n not in special})

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        return self._encode(text, text, self._added if parse_special else self._user_defined)

    def encode_guarded(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> list[int]:
        return self._encode(text, mask_spans(text, literal_spans), self._added)

    def _encode(self, text: str, searchable: str, splitter: TokenSplitter) -> list[int]:
        ids: list[int] = []
        at = 0
        for begin, end, token_id in splitter.find(searchable):
            if at < begin:
                ids += self._merge(text[at:begin])
            ids.append(token_id)
            at = end
        if at < len(text):
            ids += self._merge(text[at:])
        return ids

    def _merge(self, text: str) -> list[int]:
        if self._model.add_space_prefix:  # every piece is first or follows a special token
            text = " " + text
        if self._model.escape_spaces:
            text = text.replace(" ", SPACE)
        return self._model.merge(text)
