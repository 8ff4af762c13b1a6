"""A Hugging Face model directory as a Checkpoint: config.json, safetensors (whole or sharded), generation_config.json.

Owns no state. Weights are mapped, never copied, except experts stored one by one, which are stacked when asked for.
Pickle files are refused: loading one runs whatever code it carries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sojourn.errors import BadModelFile, ModelNotFound, UnsupportedModel
from sojourn.weights.hf_tensors import canonical_tensors
from sojourn.weights.safetensors_reader import SafetensorInfo, read_safetensors
from sojourn.weights.tensors import Checkpoint

_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 64 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def open_directory(path: Path) -> Checkpoint:
    """Open the model in directory `path`, which has a config.json.

    ModelNotFound: no weights. BadModelFile: a file is missing from the shards, truncated, damaged, or a pickle.
    UnsupportedModel: a quantization or a dtype that is not read.
    """
    config = _text_config(path, read_json(path / "config.json"))
    stored = _stored_tensors(path)
    tensors, totals = canonical_tensors(path, stored)
    # A head that is not there can only be the embedding, whatever the flag says; both may be stored and tied.
    config["tie_word_embeddings"] = bool(config.get("tie_word_embeddings")) or "lm_head.weight" not in tensors
    return Checkpoint(
        path=path,
        config=config,
        tensors=tensors,
        metadata=None,
        directory=path,
        totals=totals,
        files=tuple({info.file.path: info.file for info in stored.values()}.values()),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. ModelNotFound: no such file. BadModelFile: too large, or no JSON object."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= _MAX_JSON_BYTES else b""
        value = json.loads(raw)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadModelFile(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadModelFile(f"{path}: not valid JSON; fetch the file again") from None
    if not isinstance(value, dict):
        raise BadModelFile(f"{path}: not a JSON object; fetch the file again")
    return value


def _text_config(path: Path, stated: dict[str, Any]) -> dict[str, Any]:
    """The keys of the language model. A multimodal config keeps them under `text_config`."""
    quantization = stated.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedModel(
            f"{path}: quantized with {str(method)[:60]!r}, which is not read; use a GGUF file or the original"
        )
    text = stated.get("text_config")
    if not isinstance(text, dict):
        return stated
    outer = {key: value for key, value in stated.items() if key not in ("text_config", "vision_config", "audio_config")}
    return {**outer, **text, "model_type": text.get("model_type", f"{stated.get('model_type')}_text")}


def _stored_tensors(path: Path) -> dict[str, SafetensorInfo]:
    index = path / _INDEX
    if index.exists():
        return _indexed_tensors(index)
    files = sorted(path.glob("*.safetensors"))
    whole = path / "model.safetensors"
    if whole in files:
        return read_safetensors(whole)
    if len(files) == 1:
        return read_safetensors(files[0])
    if files:
        raise BadModelFile(f"{path}: {len(files)} safetensors files but no {_INDEX} that says how they belong together")
    if pickles := sorted(item.name for pattern in _PICKLES for item in path.glob(pattern)):
        raise BadModelFile(
            f"{path}: its weights are in pickle format ({pickles[0]}), which is refused because loading it can run any "
            "code; convert the model to safetensors"
        )
    raise ModelNotFound(f"{path}: has a config.json but no *.safetensors; the download is incomplete")


def indexed_shards(path: Path) -> list[Path]:
    """The shards that the index of directory `path` names, there or not; none without an index."""
    index = path / _INDEX
    return [path / name for name in sorted(set(_weight_map(index).values()))] if index.exists() else []


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file name, which is a plain name: nothing in an index may lead out of its folder."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise BadModelFile(f"{index}: has no weight_map of names; fetch the file again")
    for name in set(where.values()):
        if Path(name).name != name or name in ("", ".", "..") or "\\" in name or not name.isprintable():
            raise BadModelFile(f"{index}: names a shard outside its folder: {name[:100]!r}")
    return where


def _indexed_tensors(index: Path) -> dict[str, SafetensorInfo]:
    where = _weight_map(index)
    paths = indexed_shards(index.parent)
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise BadModelFile(f"{index.parent}: shards are missing: {', '.join(missing[:5])}; the download is incomplete")
    shards = {path.name: read_safetensors(path) for path in paths}
    tensors: dict[str, SafetensorInfo] = {}
    for tensor, shard in where.items():
        if tensor not in shards[shard]:
            raise BadModelFile(f"{index}: says that {tensor[:200]!r} is in {shard}, but it is not there")
        tensors[tensor] = shards[shard][tensor]
    return tensors
