"""One GGUF file, versions 2 and 3, as the GGUF specification lays it out. Checks everything before it is used.

    magic "GGUF" | version u32 | tensors u64 | entries u64 | entries | tensor records | padding | tensor data

Owns the table of tensors; never reads tensor data and never interprets metadata beyond `general.alignment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.weights.formats import FORMATS, FORMATS_BY_GGUF_TYPE, UNSUPPORTED_GGUF_TYPES, StorageFormat
from sojourn.weights.gguf_metadata import Cursor, GGUFMetadata, ValueType, read_metadata
from sojourn.weights.mapped_file import MappedFile, guess_content, map_file

MAX_TENSORS = 1 << 17
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 256
MAX_ALIGNMENT = 1 << 16
_TENSOR_RECORD_MIN_BYTES = 8 + 4 + 8 + 4 + 8  # name length, dimensions, one dimension, type, offset
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major, the reverse of the order in the file; `offset` counts from byte 0."""

    name: str
    shape: tuple[int, ...]
    format: StorageFormat
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    file: MappedFile
    metadata: GGUFMetadata
    tensors: dict[str, TensorInfo]


def read_gguf(path: Path) -> GGUFFile:
    """Map and check one file.

    ModelNotFound: no such file. BadModelFile: not GGUF, truncated, damaged or hostile.
    UnsupportedModel: version 1, big-endian, or a tensor type that is not read.
    """
    file = map_file(path)
    cursor = Cursor(file)
    tensor_count, entry_count = _read_preamble(cursor)
    metadata = read_metadata(cursor, entry_count)
    alignment = _alignment(path, metadata)
    records = [_read_record(cursor, index) for index in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in records:
        if info.name in tensors:
            raise BadModelFile(f"{path}: the tensor {info.name} appears twice")
        if info.offset % alignment:
            raise BadModelFile(f"{path}: {info.name} lies at {info.offset}, which is not a multiple of {alignment}")
        tensors[info.name] = TensorInfo(info.name, info.shape, info.format, data_start + info.offset, info.nbytes)
    _check_extent(file, tensors)
    return GGUFFile(file, metadata, tensors)


def _read_preamble(cursor: Cursor) -> tuple[int, int]:
    """Tensor and metadata counts, both possible in what remains of the file."""
    path, head = cursor.file.path, cursor.file.content[:512]
    if head[:4] != b"GGUF":
        raise BadModelFile(f"{path}: not a GGUF file (begins with {head[:4]!r}); it looks like {guess_content(head)}")
    cursor.position = 4
    version = cursor.number(ValueType.UINT32, "the version")
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{path}: this GGUF file is big-endian; convert it with gguf-convert-endian")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version} is not read, only 2 and 3; convert the model again")
    tensor_count = cursor.number(ValueType.UINT64, "the tensor count")
    entry_count = cursor.number(ValueType.UINT64, "the metadata count")
    cursor.need(entry_count * 13, f"metadata of {entry_count} entries")  # shortest entry: empty key, type, one byte
    cursor.need(tensor_count * _TENSOR_RECORD_MIN_BYTES, f"a table of {tensor_count} tensors")
    if tensor_count > MAX_TENSORS:
        raise BadModelFile(f"{path}: claims {tensor_count} tensors, more than the {MAX_TENSORS} allowed; it is damaged")
    return tensor_count, entry_count


def _alignment(path: Path, metadata: GGUFMetadata) -> int:
    value = metadata.integer("general.alignment", _DEFAULT_ALIGNMENT) or 0
    if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise BadModelFile(
            f"{path}: general.alignment is {value}, not a power of two up to {MAX_ALIGNMENT}; the file is damaged"
        )
    return value


def _read_record(cursor: Cursor, index: int) -> TensorInfo:
    """One row of the tensor table; its offset still counts from the start of the tensor data."""
    path = cursor.file.path
    name = cursor.name(f"the name of tensor {index}", MAX_NAME_BYTES)
    dimensions = cursor.number(ValueType.UINT32, f"the dimensions of {name}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadModelFile(f"{path}: {name} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}; it is damaged")
    sizes = [cursor.number(ValueType.UINT64, f"the shape of {name}") for _ in range(dimensions)]
    format = _storage_format(path, name, cursor.number(ValueType.UINT32, f"the type of {name}"))
    offset = cursor.number(ValueType.UINT64, f"the offset of {name}")
    if 0 in sizes:
        raise BadModelFile(f"{path}: {name} has a dimension of 0; it is damaged")
    if sizes[0] % format.block_elements:
        raise BadModelFile(
            f"{path}: rows of {name} have {sizes[0]} weights, which are not whole {format.name} blocks "
            f"of {format.block_elements}; it is damaged"
        )
    return TensorInfo(name, tuple(reversed(sizes)), format, offset, format.row_bytes(prod(sizes)))


def _storage_format(path: Path, tensor: str, code: int) -> StorageFormat:
    if code in FORMATS_BY_GGUF_TYPE:
        return FORMATS_BY_GGUF_TYPE[code]
    name = UNSUPPORTED_GGUF_TYPES.get(code, f"the unknown type {code}")
    raise UnsupportedModel(f"{path}: {tensor} is stored as {name}, which is not read; these are: {', '.join(FORMATS)}")


def _check_extent(file: MappedFile, tensors: dict[str, TensorInfo]) -> None:
    """Every tensor inside the file and none over another, so that what a file expands to is bounded by its size."""
    end, previous = 0, ""
    for info in sorted(tensors.values(), key=lambda item: item.offset):
        if info.offset < end:
            raise BadModelFile(f"{file.path}: {info.name} overlaps {previous}; it is damaged")
        end, previous = info.offset + info.nbytes, info.name
    if end > file.size:
        raise BadModelFile(
            f"{file.path}: truncated: {previous} ends at byte {end}, so that is the expected size, but the file has "
            f"{file.size} bytes; its download or copy was interrupted, or it is damaged: fetch it again"
        )
