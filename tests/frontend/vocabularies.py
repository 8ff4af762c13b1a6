"""Small vocabularies for the tokenizer tests, as GGUF metadata and as Hugging Face directories; no model files."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from sojourn.frontend.tokenizer import Tokenizer, load_tokenizer
from sojourn.frontend.vocabulary import BYTE_TO_CHAR

DATA = Path(__file__).parents[1] / "data" / "tokenizer"
MICRO = DATA / "micro"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def read_gz(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def byte_level_metadata(*merges: str, control: tuple[str, ...] = (), user: tuple[str, ...] = ()) -> dict[str, Any]:
    """Byte-level BPE with the 256 bytes as ids 0 to 255, then the merges' products, then the added tokens."""
    tokens = [BYTE_TO_CHAR[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * len(user)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *control, *user],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
    }


def sentencepiece_metadata(*words: str, scores: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """<unk> <s> </s>, the 256 bytes, then `words` with falling scores. Spaces in words are written as such."""
    words = tuple(word.replace(" ", "\u2581") for word in words)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    falling = [-float(n) for n in range(len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *byte_tokens, *words],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)],
        "tokenizer.ggml.scores": [0.0] * 259 + (falling if scores is None else scores),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


SENTENCES = (" t", "th", "he", " the", "in", "er", "an", "日本", "  ", "    ", "ll", "lo", " w", "or", "hello")


@cache
def sentencepiece_tokenizer() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyz ,.é日"
    return load_tokenizer(metadata=sentencepiece_metadata(*SENTENCES, *letters))


@cache
def micro_tokenizer() -> Tokenizer:
    return load_tokenizer(directory=MICRO)


@cache
def micro_metadata() -> dict[str, Any]:
    """The micro tokenizer as a GGUF file would hold it."""
    data = json.loads((MICRO / "tokenizer.json").read_text(encoding="utf-8"))
    texts = {n: text for text, n in data["model"]["vocab"].items()}
    types = dict.fromkeys(texts, NORMAL)
    for token in data["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [texts[n] for n in range(len(texts))],
        "tokenizer.ggml.token_type": [types[n] for n in range(len(types))],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }
