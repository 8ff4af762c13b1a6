"""One safetensors file: its table of tensors, checked against the file before use. Never copies tensor data.

    header length u64 | JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}} | tensor data

The `safetensors` package's NumPy reader has no bfloat16 and copies; this one maps.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from sojourn.errors import BadModelFile
from sojourn.weights.mapped_file import MappedFile, guess_content, map_file

MAX_HEADER_BYTES = 32 << 20  # a hundred thousand tensors take half of it
MAX_NAME_LENGTH = 256
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SafetensorInfo:
    """Where a tensor lies; `offset` counts from byte 0 of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: MappedFile
    offset: int
    nbytes: int


def read_safetensors(path: Path) -> dict[str, SafetensorInfo]:
    """Map and check one file. ModelNotFound: no such file. BadModelFile: not safetensors, truncated or damaged."""
    file = map_file(path)
    header_bytes = struct.unpack_from("<Q", file.content)[0] if file.size >= 8 else 0
    if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, file.size - 8):
        raise BadModelFile(
            f"{path}: not a safetensors file, or cut short: its header would have {header_bytes} bytes and the file "
            f"has {file.size}; it looks like {guess_content(file.content[:512])}"
        )
    header = _parse_header(path, file.content[8 : 8 + header_bytes])
    tensors = {
        name: _read_entry(file, 8 + header_bytes, name, entry)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    _check_extent(file, 8 + header_bytes, tensors)
    return tensors


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise BadModelFile(f"{path}: a name appears twice in the header; the file is damaged")
        return result

    try:
        header = json.loads(raw, object_pairs_hook=refuse_twins)
    except (ValueError, RecursionError):
        raise BadModelFile(f"{path}: its header is not JSON; not a safetensors file, or a damaged one") from None
    if not isinstance(header, dict):
        raise BadModelFile(f"{path}: its header is not a JSON object; the file is damaged")
    return header


def _read_entry(file: MappedFile, data_start: int, name: str, entry: Any) -> SafetensorInfo:
    if not name.isprintable() or len(name) > MAX_NAME_LENGTH:
        raise BadModelFile(f"{file.path}: the tensor name {name[:100]!r} is too long or has control characters")
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(value) is int and value >= 0 for value in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole or not isinstance(dtype, str) or len(shape) > 8:
        raise BadModelFile(f"{file.path}: the header entry of {name} is malformed; the file is damaged")
    item_bytes = _ITEM_BYTES.get(dtype)
    if item_bytes is None:
        raise BadModelFile(f"{file.path}: {name} has the unknown dtype {dtype[:40]!r}")
    if end - begin != prod(shape) * item_bytes:
        raise BadModelFile(
            f"{file.path}: {name} is {dtype} of shape {str(shape)[:100]}, which does not take {end - begin} bytes; "
            "the file is damaged"
        )
    return SafetensorInfo(name, dtype, tuple(shape), file, data_start + begin, end - begin)


def _check_extent(file: MappedFile, data_start: int, tensors: dict[str, SafetensorInfo]) -> None:
    end = data_start
    for info in sorted(tensors.values(), key=lambda item: (item.offset, item.nbytes)):
        if info.offset < end:
            raise BadModelFile(f"{file.path}: {info.name} overlaps another tensor; the file is damaged")
        end = info.offset + info.nbytes
    if end > file.size:
        raise BadModelFile(
            f"{file.path}: truncated: expected size {end} bytes, but the file has {file.size}; its download or copy "
            "was interrupted: fetch it again"
        )
