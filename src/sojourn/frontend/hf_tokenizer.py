"""Builds a tokenizer from a Hugging Face directory: tokenizer.json and the config files beside it. Decodes nothing."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from sojourn.errors import BadModelFile, ModelNotFound, UnsupportedModel
from sojourn.frontend.token_splitter import TokenSplitter, mask_spans
from sojourn.frontend.vocabulary import SpecialTokens, Vocabulary, byte_level_bytes, byte_token_bytes

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# These classes of transformers let tokenizer_config.json overrule the post-processor of tokenizer.json.
_CLASSES_WITH_BOS_FLAG = re.compile(r"(Code)?Llama|Gemma|Cohere")


def build_hf_tokenizer(directory: Path) -> tuple[Vocabulary, HFEncoder]:
    """The vocabulary and encoder of a directory.

    Raises ModelNotFound without tokenizer.json, BadModelFile for one that the `tokenizers` library can't read,
    UnsupportedModel for a decoder that is neither ByteLevel nor SentencePiece's.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFound(f"{directory} has no tokenizer.json (other tokenizer files are not read)")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise BadModelFile(f"{path}: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    bytes_of, strips = _decoding(backend, path)
    ids = backend.get_vocab(with_added_tokens=True)
    texts: list[str | None] = [None] * (max(ids.values()) + 1)
    for text, token_id in ids.items():
        texts[token_id] = text
    special = _special_tokens(backend, directory)
    vocabulary = Vocabulary(
        texts, lambda token_id: bytes_of(texts[token_id] or ""), special, strip_leading_space=strips
    )
    return vocabulary, HFEncoder(backend)


class HFEncoder:
    """Encodes with the library; where text must stay text, with a copy whose control tokens nobody can spell."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._special = frozenset(t.content for t in backend.get_added_tokens_decoder().values() if t.special)
        self._lock = threading.Lock()
        self._guarded: dict[bool, _GuardedBackend] = {}  # built when first needed: each takes the memory once more

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        if parse_special:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return self._guarded_backend(visible_too=False).encode(text, [(0, len(text))])

    def encode_guarded(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> list[int]:
        visible_too = any(text[begin:end] not in self._special for begin, end in literal_spans)
        return self._guarded_backend(visible_too=visible_too).encode(text, literal_spans)

    def _guarded_backend(self, *, visible_too: bool) -> _GuardedBackend:
        with self._lock:
            if visible_too not in self._guarded:
                self._guarded[visible_too] = _GuardedBackend(self._backend, visible_too=visible_too)
            return self._guarded[visible_too]


class _GuardedBackend:
    """A copy of a tokenizer in which each control token has a random name, written only where the token is meant.

    The rest of the pipeline (normalizer, pre-tokenizer, what counts as the first word) is the library's own, so benign
    text gets the same ids. `visible_too`: the added tokens that aren't control tokens are renamed as well.
    """

    def __init__(self, backend: Backend, *, visible_too: bool) -> None:
        added = backend.get_added_tokens_decoder()
        nonce = secrets.token_hex(16)
        renamed = {token_id for token_id, token in added.items() if token.special or visible_too}
        self._names = {token_id: f"\U0010fffd{nonce}:{token_id}\U0010fffd" for token_id in renamed}
        self._splitter = TokenSplitter({token.content: token_id for token_id, token in added.items()})
        data = json.loads(backend.to_str())
        data["post_processor"] = None
        for entry in data["added_tokens"]:
            if entry["id"] in renamed:
                entry.update(content=self._names[entry["id"]], normalized=False)
        self._backend = Backend.from_str(json.dumps(data))
        # The library numbers added tokens that the model does not know anew.
        self._ids = {self._backend.token_to_id(self._names.get(n, token.content)): n for n, token in added.items()}

    def encode(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> list[int]:
        parts: list[str] = []
        at = 0
        for begin, end, token_id in self._splitter.find(mask_spans(text, literal_spans)):
            if token_id in self._names:
                parts += [text[at:begin], self._names[token_id]]
                at = end
        parts.append(text[at:])
        ids = self._backend.encode("".join(parts), add_special_tokens=False).ids
        return [self._ids.get(token_id, token_id) for token_id in ids]


def _decoding(backend: Backend, path: Path) -> tuple[Callable[[str], bytes], bool]:
    """How a token's text becomes bytes, and whether decoding drops the first space."""
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return byte_level_bytes, False
    if not kinds or not set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        raise UnsupportedModel(
            f"{path}: decoder {' + '.join(kinds) or 'none'} is not implemented; ByteLevel and SentencePiece's are"
        )
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    strips = any(
        (step["type"] == "Strip" and step["content"] == " " and step["start"] == 1)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )
    return partial(_sentencepiece_bytes, replacements, "ByteFallback" in kinds), strips


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def _sentencepiece_bytes(replacements: Sequence[tuple[str, str]], byte_fallback: bool, text: str) -> bytes:
    for old, new in replacements:
        text = text.replace(old, new)
    return byte_token_bytes(text) if byte_fallback else text.encode()


def _special_tokens(backend: Backend, directory: Path) -> SpecialTokens:
    config = read_json(directory / "tokenizer_config.json")
    listed = {**read_json(directory / "special_tokens_map.json"), **config}
    named = {name: text for name in _NAMES if (text := _token_text(listed.get(name))) is not None}
    bos, eos = (backend.token_to_id(named[name]) if name in named else None for name in ("bos_token", "eos_token"))
    generation = read_json(directory / "generation_config.json") or read_json(directory / "config.json")
    declared = generation.get("eos_token_id")
    ends = [eos, *(declared if isinstance(declared, list) else [declared])]
    added = backend.get_added_tokens_decoder()
    prefix, suffix = _added_around(backend)
    if _CLASSES_WITH_BOS_FLAG.match(config.get("tokenizer_class") or ""):
        prefix = _flagged(config.get("add_bos_token"), bos, prefix)
        suffix = _flagged(config.get("add_eos_token"), eos, suffix)
    return SpecialTokens(
        bos=bos,
        eos=tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
        special=frozenset(token_id for token_id, token in added.items() if token.special),
        visible=tuple(token.content for token in added.values() if not token.special),
        named=named,
        prefix=prefix,
        suffix=suffix,
    )


def _added_around(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and behind a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a").ids
    at = next((n for n in range(len(full) - len(plain) + 1) if full[n : n + len(plain)] == plain), 0)
    return tuple(full[:at]), tuple(full[at + len(plain) :])


def _flagged(flag: bool | None, token_id: int | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if flag is None:
        return default
    return (token_id,) if flag and token_id is not None else ()


def _token_text(value: Any) -> str | None:
    """A token in a config file is its text or an object that holds it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a config file, empty if there is no such file. Raises BadModelFile if it is no JSON object."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModelFile(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadModelFile(f"{path} holds {type(data).__name__}, expected an object")
    return data
