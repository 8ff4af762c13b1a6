"""Names and shapes of Hugging Face checkpoints made uniform. Never opens a file.

Multimodal prefixes are dropped with the towers they belong to, and the experts of a layer become one tensor
`mlp.experts.{gate,up,down}_proj.weight` [experts, out, in], whether stored one by one or fused by `transformers` 5
(`gate_up_proj` [experts, 2 * out, in], `down_proj`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.weights.safetensors_reader import SafetensorInfo
from sojourn.weights.tensors import LazyTensor, LazyTensors, Part, Tensor, Totals

_READ_DTYPES = ("F32", "F16", "BF16")
_OTHER_PARTS = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision)\."
)
_BUFFERS = re.compile(r".*\.(rotary_emb\.inv_freq|rotary_emb\..*_cached|masked_bias|position_ids)")
_ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d{1,18})\.((?:gate|up|down)_proj\.weight)")
_FUSED_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")


def canonical_tensors(path: Path, stored: dict[str, SafetensorInfo]) -> tuple[LazyTensors, Totals]:
    """The language model's tensors by canonical name, and their totals. `path` is for messages.

    UnsupportedModel: a dtype that is not read. BadModelFile: experts that do not fit together.
    """
    tensors: dict[str, LazyTensor] = {}
    parts: list[Part] = []
    experts: defaultdict[str, dict[int, SafetensorInfo]] = defaultdict(dict)
    for stored_name, info in stored.items():
        name = _canonical_name(stored_name)
        if name is None:
            continue
        if info.dtype not in _READ_DTYPES:
            raise UnsupportedModel(f"{path}: {stored_name} is {info.dtype}, which is not read; F32, F16 and BF16 are")
        parts.append(Part(name, info.dtype, prod(info.shape), info.nbytes))
        if match := _ONE_EXPERT.fullmatch(name):
            experts[f"{match[1]}.{match[3]}"][int(match[2])] = info
        elif match := _FUSED_EXPERTS.fullmatch(name):
            tensors.update(_split_fused(path, match[1], match[2], info))
        else:
            tensors[name] = LazyTensor(info.shape, partial(_view, name, info))
    for name, by_number in experts.items():
        infos = _expert_list(path, name, by_number)
        tensors[name] = LazyTensor((len(infos), *infos[0].shape), partial(_stack, name, infos))
    return LazyTensors(tensors), Totals.of(parts)


def _canonical_name(name: str) -> str | None:
    """None for a tensor that is no part of the language model, or that is computed rather than learned."""
    if _OTHER_PARTS.match(name) or _BUFFERS.fullmatch(name):
        return None
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


def _view(name: str, info: SafetensorInfo) -> Tensor:
    return Tensor(name, info.shape, info.dtype, info.file.view(info.offset, info.nbytes))


def _expert_list(path: Path, name: str, by_number: dict[int, SafetensorInfo]) -> list[SafetensorInfo]:
    count = max(by_number) + 1
    missing = next((number for number in range(count) if number not in by_number), None)
    if missing is not None:
        raise BadModelFile(f"{path}: {name} lacks expert {missing}")
    if len({(info.shape, info.dtype) for info in by_number.values()}) > 1:
        raise BadModelFile(f"{path}: the experts of {name} have different shapes or dtypes")
    return [by_number[number] for number in range(count)]


def _stack(name: str, infos: Sequence[SafetensorInfo]) -> Tensor:
    data = np.concatenate([info.file.view(info.offset, info.nbytes) for info in infos])
    return Tensor(name, (len(infos), *infos[0].shape), infos[0].dtype, data)


def _split_fused(path: Path, prefix: str, kind: str, info: SafetensorInfo) -> dict[str, LazyTensor]:
    if len(info.shape) != 3 or (kind == "gate_up_proj" and info.shape[1] % 2):
        raise BadModelFile(f"{path}: {info.name} has the shape {info.shape}, which is not that of fused experts")
    if kind == "down_proj":
        name = f"{prefix}.down_proj.weight"
        return {name: LazyTensor(info.shape, partial(_view, name, info))}
    names = (f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight")
    experts, rows, columns = info.shape
    shape = (experts, rows // 2, columns)
    return {name: LazyTensor(shape, partial(_half, name, info, half)) for half, name in enumerate(names)}


def _half(name: str, info: SafetensorInfo, half: int) -> Tensor:
    """Rows of the first or second half of every expert: [experts, 2 * out, in] -> [experts, out, in]."""
    experts, rows, columns = info.shape
    data = info.file.view(info.offset, info.nbytes).reshape(experts, 2, -1)[:, half]
    return Tensor(name, (experts, rows // 2, columns), info.dtype, np.ascontiguousarray(data).reshape(-1))
