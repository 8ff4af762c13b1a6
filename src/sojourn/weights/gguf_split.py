"""All shards of a GGUF model, whichever of them was named. Never looks inside tensors.

gguf-split names them `name-00001-of-00003.gguf` and writes `split.no` (from 0), `split.count` and
`split.tensors.count` into each; only the first has the model's metadata.
"""

from __future__ import annotations

import re
from pathlib import Path

from sojourn.errors import BadModelFile
from sojourn.weights.gguf_reader import GGUFFile, read_gguf

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_paths(path: Path) -> list[Path]:
    """The paths of all shards in order, from the name of any; a name that is no shard's gives just itself."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count:
        raise BadModelFile(f"{path}: its name says shard {int(match['number'])} of {count}, which cannot be")
    return [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def read_shards(path: Path) -> list[GGUFFile]:
    """Every shard of the model that `path` belongs to, the first one first.

    BadModelFile: a shard is missing (named), belongs to another model, was renamed, or several were joined with cat.
    """
    paths = shard_paths(path)
    if path.exists():
        missing = [item.name for item in paths if not item.exists()]
        if missing:
            raise BadModelFile(f"{path}: shards of this model are missing beside it: {', '.join(missing[:5])}")
    files = [read_gguf(item) for item in paths]
    for index, file in enumerate(files):
        _check_shard(file, index, len(files))
    _check_total(files)
    return files


def _check_shard(shard: GGUFFile, index: int, count: int) -> None:
    path = shard.file.path
    stored_count = shard.metadata.integer("split.count") or 1
    stored_number = (shard.metadata.integer("split.no") or 0) + 1
    if (stored_number, stored_count) == (index + 1, count):
        return
    if count > 1:
        raise BadModelFile(
            f"{path}: its name says shard {index + 1} of {count}, its content says {stored_number} of {stored_count}; "
            "the shards belong to different models or were renamed"
        )
    if _has_second_header(shard):
        raise BadModelFile(
            f"{path}: several shards joined into one file; keep the {stored_count} shards as they were, "
            "or merge them with `gguf-split --merge`"
        )
    raise BadModelFile(
        f"{path}: this is shard {stored_number} of {stored_count}; put all of them into one folder, named "
        f"NAME-00001-of-{stored_count:05d}.gguf and so on"
    )


def _has_second_header(shard: GGUFFile) -> bool:
    """Whether another GGUF file follows the last tensor: shards joined with cat."""
    end = max((item.offset + item.nbytes for item in shard.tensors.values()), default=4)
    return shard.file.content.find(b"GGUF", end) >= 0


def _check_total(files: list[GGUFFile]) -> None:
    first = files[0]
    seen: dict[str, Path] = {}
    for shard in files:
        for name in shard.tensors:
            if name in seen:
                raise BadModelFile(f"{shard.file.path}: the tensor {name} is also in {seen[name].name}")
            seen[name] = shard.file.path
    expected = first.metadata.integer("split.tensors.count")
    if len(files) > 1 and expected is not None and expected != len(seen):
        raise BadModelFile(
            f"{first.file.path}: the shards hold {len(seen)} tensors together, but should hold {expected}"
        )
