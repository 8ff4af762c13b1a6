"""Writes GGUF files byte by byte, right ones and wrong ones; for the tests only. The product never writes GGUF.

`gguf.GGUFWriter` makes the well-formed files of the tests; this builder can lie about any count, type or offset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_CODES = {UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B"}
_CODES |= {UINT64: "Q", INT64: "q", FLOAT64: "d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: object) -> bytes:
    return string(content) if kind == STRING else struct.pack("<" + _CODES[kind], content)  # type: ignore[arg-type]


def entry(key: str | bytes, kind: int, content: object) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def array(key: str, kind: int, items: list[object], count: int | None = None) -> bytes:
    """An array entry; `count` lies about its length."""
    head = struct.pack("<IIQ", ARRAY, kind, len(items) if count is None else count)
    return string(key) + head + b"".join(value(kind, item) for item in items)


def tensor(name: str | bytes, sizes: list[int], kind: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    """A row of the tensor table, sizes in file order (innermost first)."""
    count = len(sizes) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


@dataclass
class Parts:
    """A file in its parts; every part may be replaced before `build`."""

    entries: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    num_entries: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        entries = len(self.entries) if self.num_entries is None else self.num_entries
        tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        head = b"GGUF" + struct.pack("<IQQ", self.version, tensors, entries)
        head += b"".join(self.entries) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data


LLAMA_ENTRIES = [
    entry("general.architecture", STRING, "llama"),
    entry("llama.block_count", UINT32, 1),
    entry("llama.context_length", UINT32, 64),
    entry("llama.embedding_length", UINT32, 32),
    entry("llama.feed_forward_length", UINT32, 64),
    entry("llama.attention.head_count", UINT32, 4),
    entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    array("tokenizer.ggml.tokens", STRING, ["<s>", "</s>", "a", "b"]),
    array("tokenizer.ggml.scores", FLOAT32, [0.0, 0.0, -1.0, -2.0]),
    array("tokenizer.ggml.token_type", INT32, [3, 3, 1, 1]),
    entry("tokenizer.ggml.eos_token_id", UINT32, 1),
]


def small_llama() -> Parts:
    """A file that opens: a llama of which only the embedding [4, 32] and the output norm [32] are stored."""
    return Parts(
        entries=list(LLAMA_ENTRIES),
        tensors=[tensor("token_embd.weight", [32, 4]), tensor("output_norm.weight", [32], offset=512)],
        data=struct.pack("<160f", *range(160)),
    )
