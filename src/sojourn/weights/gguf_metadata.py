"""GGUF key-value metadata: checked when the file is opened, decoded when asked for. Never interprets a key.

Every length is compared with the bytes that remain before anything is read or allocated. Arrays are only measured on
opening: the engine process opens the same file and has no use for a quarter of a million token strings.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import numpy as np

from sojourn.errors import BadModelFile
from sojourn.weights.mapped_file import MappedFile

# Far above any real file (vocabularies end at a few hundred thousand); they bound the time a hostile file can take.
MAX_ENTRIES = 1 << 17
MAX_STRINGS = 1 << 22
MAX_KEY_BYTES = 65535
MAX_STRING_BYTES = 1 << 24


class ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# struct codes; a bool is one byte of 0 or 1
_CODES: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in a mapped header. Nothing is read before it is known to lie inside the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    @property
    def remaining(self) -> int:
        return self.file.size - self.position

    def need(self, nbytes: int, what: str) -> None:
        """BadModelFile unless `nbytes` more bytes exist."""
        if nbytes > self.remaining:
            raise BadModelFile(
                f"{self.file.path}: {what} needs {nbytes} bytes at byte {self.position}, but the file has only "
                f"{self.file.size} bytes in all; it is damaged or its download was interrupted, fetch it again"
            )

    def number(self, kind: ValueType, what: str) -> Any:
        code = struct.Struct("<" + _CODES[kind])
        self.need(code.size, what)
        if kind is ValueType.BOOL and self.file.content[self.position] > 1:
            raise BadModelFile(f"{self.file.path}: {what} is a bool of {self.file.content[self.position]}")
        value = code.unpack_from(self.file.content, self.position)[0]
        self.position += code.size
        return value

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self.number(ValueType.UINT64, f"the length of {what}")
        self.need(length, what)
        if length > limit:
            raise BadModelFile(f"{self.file.path}: {what} is {length} bytes long, more than the {limit} allowed")
        raw = self.file.content[self.position : self.position + length]
        self.position += length
        return _decode(raw, self.file, what)

    def name(self, what: str, limit: int) -> str:
        """A string that messages may quote: printable, so that no file can write to a terminal what it likes."""
        text = self.string(what, limit)
        if not text.isprintable():
            raise BadModelFile(f"{self.file.path}: {what} has control characters: {text[:100]!r}; the file is damaged")
        return text

    def value_type(self, what: str) -> ValueType:
        code = self.number(ValueType.UINT32, f"the type of {what}")
        if code not in ValueType._value2member_map_:
            raise BadModelFile(f"{self.file.path}: {what} has the unknown metadata type {code}")
        return ValueType(code)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Where an array of the metadata lies. For strings, `offsets` has the position of each length field."""

    kind: ValueType
    count: int
    position: int
    offsets: array[int]


def read_metadata(cursor: Cursor, count: int) -> GGUFMetadata:
    """The `count` entries at `cursor`, which is left behind them. BadModelFile: anything that does not fit."""
    path = cursor.file.path
    if count > MAX_ENTRIES:
        raise BadModelFile(
            f"{path}: claims {count} metadata entries, more than the {MAX_ENTRIES} allowed; it is damaged"
        )
    entries: dict[str, Any] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index}", MAX_KEY_BYTES)
        if key in entries:
            raise BadModelFile(f"{path}: the metadata key {key[:100]!r} appears twice")
        kind = cursor.value_type(key)
        if kind is ValueType.ARRAY:
            entries[key] = _measure_array(cursor, key)
        elif kind is ValueType.STRING:
            entries[key] = cursor.string(key)
        else:
            entries[key] = cursor.number(kind, key)
    return GGUFMetadata(cursor.file, entries)


def _measure_array(cursor: Cursor, key: str) -> StoredArray:
    kind = cursor.value_type(f"the elements of {key}")
    count = cursor.number(ValueType.UINT64, f"the length of {key}")
    if kind is ValueType.ARRAY:
        raise BadModelFile(f"{cursor.file.path}: {key} is an array of arrays, which no model file uses")
    if kind is ValueType.STRING:
        return _measure_strings(cursor, key, count)
    position = cursor.position
    nbytes = count * struct.calcsize("<" + _CODES[kind])
    cursor.need(nbytes, key)
    cursor.position += nbytes
    return StoredArray(kind, count, position, array("Q"))


def _measure_strings(cursor: Cursor, key: str, count: int) -> StoredArray:
    cursor.need(count * _LENGTH.size, key)
    if count > MAX_STRINGS:
        raise BadModelFile(f"{cursor.file.path}: {key} has {count} strings, more than the {MAX_STRINGS} allowed")
    content, end, start = cursor.file.content, cursor.file.size, cursor.position
    unpack, last = _LENGTH.unpack_from, end - _LENGTH.size
    offsets, position = array("Q"), start
    for _ in range(count):
        if position > last:
            break
        offsets.append(position)
        position += _LENGTH.size + unpack(content, position)[0]
    if len(offsets) < count or position > end:  # the last string measured leaves no room for itself or for the next
        cursor.position = offsets[-1]
        cursor.need(position + _LENGTH.size - cursor.position, f"string {len(offsets) - 1} of {key}")
    cursor.position = position
    return StoredArray(ValueType.STRING, count, start, offsets)


class GGUFMetadata(Mapping[str, Any]):
    """The metadata of one file. Values are plain ints, floats, bools, strings and lists of them."""

    def __init__(self, file: MappedFile, entries: dict[str, Any]) -> None:
        self._file = file
        self._entries = entries
        self._decoded: dict[str, list[Any]] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._entries[key]
        if not isinstance(value, StoredArray):
            return value
        if key not in self._decoded:
            self._decoded[key] = self._decode_array(key, value)
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """An integer value, or `default` when the key is absent. BadModelFile: the value has another type."""
        return cast("int | None", self._scalar(key, (int,), "an integer", default))

    def real(self, key: str, default: float | None = None) -> float | None:
        """A number, rounded to the shortest decimal that gives the same float32: 1e-05, not 9.99999974e-06."""
        value = self._scalar(key, (int, float), "a number", default)
        return value if value is None else float(str(np.float32(value)))

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        """A bool, or `default` when the key is absent. BadModelFile: the value has another type."""
        return cast("bool | None", self._scalar(key, (bool,), "a bool", default))

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string, or `default` when the key is absent. BadModelFile: the value has another type."""
        return cast("str | None", self._scalar(key, (str,), "a string", default))

    def _scalar(self, key: str, types: tuple[type, ...], noun: str, default: Any) -> Any:
        if key not in self._entries:
            return default
        value = self._entries[key]
        if type(value) not in types:
            found = f"an array of {value.kind.name.lower()}" if isinstance(value, StoredArray) else repr(value)[:40]
            raise BadModelFile(f"{self._file.path}: {key} should be {noun}, but is {found}; the file is damaged")
        return value

    def stored_array(self, key: str) -> StoredArray | None:
        """Type and length of an array without decoding it; None when the key is absent or not an array."""
        value = self._entries.get(key)
        return value if isinstance(value, StoredArray) else None

    def _decode_array(self, key: str, stored: StoredArray) -> list[Any]:
        content = self._file.content
        if stored.kind is not ValueType.STRING:
            code = f"<{stored.count}{_CODES[stored.kind]}"
            return list(struct.unpack_from(code, content, stored.position))
        unpack = _LENGTH.unpack_from
        spans = ((start + 8, start + 8 + unpack(content, start)[0]) for start in stored.offsets)
        try:
            return [content[start:end].decode() for start, end in spans]
        except UnicodeDecodeError:
            raise BadModelFile(f"{self._file.path}: {key} has a string that is not UTF-8") from None


def _decode(raw: bytes, file: MappedFile, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadModelFile(f"{file.path}: {what} is not UTF-8 text; the file is damaged") from None
