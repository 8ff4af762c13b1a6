"""Which files of a hub repository make one model. Works on names alone; never touches a network.

A repository is either a Hugging Face model (config.json and safetensors) or a collection of GGUF files in several
quantizations, of which the tag in `org/name:Q4_K_M` picks one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

from sojourn.errors import ModelNotFound, UnsupportedModel

DEFAULT_QUANTIZATION = "Q4_K_M"  # what others take too when a repository has many and nobody says which

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # vision projectors and calibration data
_HF_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")


def choose_files(repository: str, names: Iterable[str], quantization: str | None) -> list[str]:
    """The names to download, a GGUF model's first shard first.

    ModelNotFound: nothing fits, or several models do; the message lists them. UnsupportedModel: pickles only.
    """
    names = sorted(names)
    models = _gguf_models(names)
    if quantization is not None:
        return _with_quantization(repository, models, quantization)
    if "config.json" in names and any("/" not in name and name.endswith(".safetensors") for name in names):
        return _hf_files(names)
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        return _with_quantization(repository, models, DEFAULT_QUANTIZATION)
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        raise UnsupportedModel(
            f"{repository}: has pickle files only, which are refused because loading them can run code"
        )
    raise ModelNotFound(f"{repository}: has neither *.gguf nor config.json with *.safetensors")


def model_names(repository: str, names: Iterable[str]) -> dict[str, list[str]]:
    """What to call each model of the repository whose files are among `names`: those that `choose_files` then gives."""
    names = sorted(names)
    tags = [None, *(re.split(r"[-.]", PurePosixPath(model).name)[-1] for model in _gguf_models(names))]
    found: dict[str, list[str]] = {}
    for tag in tags:
        try:
            files = choose_files(repository, names, tag)
        except (ModelNotFound, UnsupportedModel):
            continue
        if files not in found.values():
            found[repository if tag is None else f"{repository}:{tag}"] = files
    return found


def _gguf_models(names: list[str]) -> dict[str, list[str]]:
    """GGUF files by model: shards share the name without their number."""
    models: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name):
            models[_SHARD.sub("", name[: -len(".gguf")])].append(name)
    return dict(models)


def _with_quantization(repository: str, models: dict[str, list[str]], quantization: str) -> list[str]:
    whole_word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quantization)}(?![A-Za-z0-9_])", re.IGNORECASE)
    fitting = [files for model, files in models.items() if whole_word.search(PurePosixPath(model).name)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(PurePosixPath(model).name for model in models) or "no GGUF file"
    problem = "has several models" if fitting else "has no model"
    raise ModelNotFound(f"{repository}: {problem} with {quantization} in the name; it has {known[:400]}")


def _hf_files(names: list[str]) -> list[str]:
    top = [name for name in names if "/" not in name and name.endswith(_HF_SUFFIXES)]
    standard = [name for name in top if name.startswith("model") and name.endswith(".safetensors")]
    # Some repositories hold the same weights twice, the second time in their author's own layout.
    chosen = [name for name in top if not standard or not name.endswith(".safetensors") or name in standard]
    # Weights last: where they all are, an interrupted download lacks nothing else.
    return sorted(chosen, key=lambda name: name.endswith(".safetensors"))
