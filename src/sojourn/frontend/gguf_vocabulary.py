"""The tokens of a GGUF file: texts, types, scores, and which of them end generation. Checks them once.

Encodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sojourn.errors import BadModelFile
from sojourn.frontend.vocabulary import SpecialTokens


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Names of tokens that end a turn or a text. GGUF files name one EOS id, but a chat model often ends with another:
# llama.cpp finds them by name.
_END_OF_GENERATION = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
    ]
)
# These are ordinary text in some vocabularies (`</s>` is HTML strike-through in Gemma's), so the name alone is not
# enough: the file must call them control.
_END_IF_CONTROL = frozenset(["</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "[e~["])
# Fill-in-the-middle separators end a completion of one file: what follows would be another file.
_END_OF_FILE = frozenset(
    [
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ]
)
_NAMED_IDS = ("bos", "eos", "eot", "eom", "unknown", "separator", "padding", "mask")
_OTHER_SPELLINGS = {"separator": ("seperator",)}  # as the GGUF format itself spells it
_TEMPLATE_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "separator",
    "mask_token": "mask",
}


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """One entry per token id in each sequence."""

    texts: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None  # SentencePiece log probabilities: higher merges first
    ids: Mapping[str, int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> GGUFVocabulary:
        """Raises BadModelFile where the arrays are missing, differ in length or repeat a token."""
        if not isinstance(tokens := metadata.get("tokenizer.ggml.tokens"), Sequence) or not tokens:
            raise BadModelFile("the GGUF file has no tokenizer.ggml.tokens: it holds no vocabulary")
        texts = [text or f"[EMPTY_{n}]" for n, text in enumerate(tokens)]
        ids = {text: n for n, text in enumerate(texts)}
        if len(ids) != len(texts):
            raise BadModelFile(
                f"tokenizer.ggml.tokens repeats a token: {len(texts)} entries, {len(ids)} different ones"
            )
        types = _entries(metadata, "tokenizer.ggml.token_type", len(texts))
        scores = _entries(metadata, "tokenizer.ggml.scores", len(texts))
        return cls(texts, [TokenType.NORMAL] * len(texts) if types is None else types, scores, ids)

    def of_types(self, *types: TokenType) -> dict[str, int]:
        wanted = set(types)
        return {self.texts[n]: n for n, kind in enumerate(self.types) if kind in wanted}


def _entries(metadata: Mapping[str, Any], key: str, count: int) -> list[Any] | None:
    values = metadata.get(key)
    if values is None:
        return None
    if len(values) < count:
        raise BadModelFile(f"{key} has {len(values)} entries, the vocabulary has {count} tokens")
    return values.tolist()[:count] if hasattr(values, "tolist") else list(values)[:count]


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """The merging model of a vocabulary, and how text is prepared for it."""

    merge: Callable[[str], list[int]]
    bytes_of: Callable[[int], bytes]
    escape_spaces: bool = False  # spaces are written U+2581
    add_space_prefix: bool = False  # a space is put before text at the start and after a special token


def special_tokens(
    metadata: Mapping[str, Any], tokens: GGUFVocabulary, *, default_ids: Mapping[str, int], default_add_bos: bool
) -> SpecialTokens:
    """BOS, every end-of-generation id and the hidden ids.

    `default_ids` apply where the file is silent and the id is a control token.
    """
    named = {name: _named_id(metadata, name, tokens, default_ids) for name in _NAMED_IDS}
    principal = named["eos"]
    ends = {token_id for token_id in (named["eot"], named["eom"]) if token_id is not None} | _ends_by_name(tokens)
    eos = (() if principal is None else (principal,)) + tuple(sorted(ends - {principal}))
    control = frozenset(n for n, kind in enumerate(tokens.types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN))
    prefix = (
        (named["bos"],)
        if named["bos"] is not None and metadata.get("tokenizer.ggml.add_bos_token", default_add_bos)
        else ()
    )
    special = control | frozenset(eos)
    user_defined = tokens.of_types(TokenType.USER_DEFINED)
    return SpecialTokens(
        bos=named["bos"],
        eos=eos,
        special=special,
        visible=tuple(text for text, n in user_defined.items() if n not in special),
        named={
            name: tokens.texts[token_id]
            for name, key in _TEMPLATE_NAMES.items()
            if (token_id := named[key]) is not None
        },
        prefix=prefix,
        suffix=(principal,) if principal is not None and metadata.get("tokenizer.ggml.add_eos_token", False) else (),
        chat_prefix=prefix,
    )


def _named_id(
    metadata: Mapping[str, Any], name: str, tokens: GGUFVocabulary, defaults: Mapping[str, int]
) -> int | None:
    count = len(tokens.texts)
    for spelling in (name, *_OTHER_SPELLINGS.get(name, ())):
        token_id = metadata.get(f"tokenizer.ggml.{spelling}_token_id")
        if token_id is not None:
            if not 0 <= token_id < count:
                raise BadModelFile(
                    f"tokenizer.ggml.{spelling}_token_id is {token_id}, the vocabulary has {count} tokens"
                )
            return int(token_id)
    # A default is the id that the first models of this kind used; elsewhere an ordinary word may have it.
    default = defaults.get(name, count)
    return default if default < count and tokens.types[default] in (TokenType.CONTROL, TokenType.UNKNOWN) else None


def _ends_by_name(tokens: GGUFVocabulary) -> set[int]:
    found = {text for text in _END_OF_GENERATION | _END_OF_FILE if text in tokens.ids}
    found |= {
        text for text in _END_IF_CONTROL if text in tokens.ids and tokens.types[tokens.ids[text]] == TokenType.CONTROL
    }
    # Where a message has its own terminators (Harmony, Solar), <|end|> only ends a part of it.
    if {"<|return|>", "<|call|>"} <= found or (found & {"<|call|>", "<|calls|>"} and "<|flush|>" in found):
        found.discard("<|end|>")
    return {tokens.ids[text] for text in found}
