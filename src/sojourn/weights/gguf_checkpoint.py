"""A GGUF model as a Checkpoint: names translated, and what the converter did to the weights undone. Owns no state.

Undone here: llama's rotary row order, and Gemma's norms, which GGUF stores as 1 + w.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import BadModelFile
from sojourn.weights.gguf_config import translate_config
from sojourn.weights.gguf_metadata import GGUFMetadata, ValueType
from sojourn.weights.gguf_names import canonical_name
from sojourn.weights.gguf_reader import GGUFFile, TensorInfo
from sojourn.weights.gguf_split import read_shards
from sojourn.weights.tensors import Checkpoint, LazyTensor, LazyTensors, Part, Tensor, Totals

log = logging.getLogger(__name__)

_ROTARY_ROWS = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def open_gguf(path: Path) -> Checkpoint:
    """Open the GGUF model that `path`, a file or any of its shards, belongs to.

    ModelNotFound, BadModelFile, UnsupportedModel as in `gguf_reader.read_gguf` and `gguf_config.translate_config`.
    """
    shards = read_shards(path)
    first = shards[0]
    infos = {name: info for shard in shards for name, info in shard.tensors.items()}
    config = translate_config(first.file.path, first.metadata, infos)
    _check_vocabulary(first.file.path, first.metadata)
    tensors: dict[str, LazyTensor] = {}
    parts = []
    unknown = []
    for shard in shards:
        for info in shard.tensors.values():
            name = canonical_name(str(first.metadata["general.architecture"]), info.name)
            if name is None:
                unknown.append(info.name)
                continue
            tensors[name] = LazyTensor(info.shape, _maker(shard, info, name, config))
            parts.append(Part(name, info.format.name, _elements(info), info.nbytes))
    if unknown:
        log.warning("%s: %d tensors are not used: %s", first.file.path.name, len(unknown), ", ".join(unknown[:5]))
    return Checkpoint(
        path=first.file.path,
        config=config,
        tensors=LazyTensors(tensors),
        metadata=first.metadata,
        directory=None,
        totals=Totals.of(parts),
        files=tuple(shard.file for shard in shards),
    )


def _elements(info: TensorInfo) -> int:
    return info.nbytes // info.format.block_bytes * info.format.block_elements


def _maker(shard: GGUFFile, info: TensorInfo, name: str, config: dict[str, Any]) -> Callable[[], Tensor]:
    read = partial(_stored, shard, info, name)
    rotary = _ROTARY_ROWS.fullmatch(info.name)
    if rotary and config["model_type"] in ("llama", "mistral"):
        heads = config["num_attention_heads" if rotary[1] == "q" else "num_key_value_heads"]
        if info.shape[0] % (2 * heads):
            raise BadModelFile(f"{shard.file.path}: {info.name} has {info.shape[0]} rows for {heads} heads")
        return lambda: _with_rows_in_halves(read(), heads)
    if config["model_type"] == "gemma3_text" and info.name.endswith("norm.weight"):
        return lambda: _minus_one(read())
    return read


def _stored(shard: GGUFFile, info: TensorInfo, name: str) -> Tensor:
    return Tensor(name, info.shape, info.format.name, shard.file.view(info.offset, info.nbytes))


def _with_rows_in_halves(tensor: Tensor, heads: int) -> Tensor:
    """Undo the converter's row order of a q or k projection, for any storage format: whole rows move, no code changes.

    GGUF interleaves the two halves of each head (rows 0, d/2, 1, d/2 + 1 ...) for ggml's RoPE on neighbouring pairs;
    Hugging Face rotates element i with element i + d/2.
    """
    rows = tensor.shape[0]
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    data: NDArray[np.uint8] = tensor.data.reshape(rows, -1)[order].reshape(-1)
    return Tensor(tensor.name, tensor.shape, tensor.format, data)


def _minus_one(tensor: Tensor) -> Tensor:
    """The w of a norm that GGUF stores as 1 + w. Adding 1 again gives the stored number to within half a unit of 1."""
    data = (tensor.float32() - np.float32(1)).reshape(-1).view(np.uint8)
    return Tensor(tensor.name, tensor.shape, "F32", data)


def _check_vocabulary(path: Path, metadata: GGUFMetadata) -> None:
    """Types and lengths of the tokenizer's arrays, so that nobody reads scores out of bytes or past their end."""
    expected = {
        "tokens": (ValueType.STRING,),
        "merges": (ValueType.STRING,),
        "scores": (ValueType.FLOAT32,),
        "token_type": (ValueType.INT32, ValueType.UINT32),
    }
    counts = {}
    for name, kinds in expected.items():
        key = f"tokenizer.ggml.{name}"
        if key not in metadata:
            continue
        stored = metadata.stored_array(key)
        if stored is None or stored.kind not in kinds:
            found = "no array" if stored is None else f"an array of {stored.kind.name.lower()}"
            raise BadModelFile(
                f"{path}: {key} is {found}, not an array of {kinds[0].name.lower()}; the file is damaged"
            )
        counts[name] = stored.count
    for name in ("scores", "token_type"):
        if name in counts and counts[name] != counts.get("tokens"):
            raise BadModelFile(
                f"{path}: tokenizer.ggml.{name} has {counts[name]} entries for {counts.get('tokens', 0)} tokens; "
                "the file is damaged"
            )
