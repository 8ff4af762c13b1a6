"""The micro models of tests/data/micro: directories as a user would have them, and executors over them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.graph.kv_storage import KVStorage
from sojourn.graph.reference import ReferenceExecutor
from sojourn.models import ModelConfig, build_graph
from sojourn.weights.checkpoint import open_checkpoint

DATA = Path(__file__).parents[1] / "data" / "micro"
CASES: dict[str, dict[str, Any]] = json.loads((DATA / "cases.json").read_text())


def golden(case: str) -> dict[str, np.ndarray]:
    """`prompt`, `positions`, `logits` [positions, vocab] and, but for dynamic RoPE, `greedy`."""
    with np.load(DATA / "goldens.npz") as arrays:
        own = {name.removeprefix(f"{case}/"): arrays[name] for name in arrays.files if name.startswith(f"{case}/")}
        return {"prompt": arrays["prompt"], "positions": arrays["positions"], **own}


def write_directory(case: str, directory: Path, **changes: Any) -> Path:
    """A Hugging Face directory: the case's weights and config, with some keys changed or (None) removed."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CASES[case]["config"], **changes}
    kept = {key: value for key, value in config.items() if key not in changes or value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    shutil.copy(DATA / CASES[case]["weights"] / "model.safetensors", directory / "model.safetensors")
    return directory


def load(path: Path, *, num_blocks: int = 40, block_size: int = 8) -> ReferenceExecutor:
    """What the engine does: open, configure, build, bind, load."""
    checkpoint = open_checkpoint(path)
    shapes = {name: checkpoint.shape(name) for name in checkpoint.tensors}
    graph = build_graph(ModelConfig.from_hf(checkpoint.config)).bind(shapes)
    return ReferenceExecutor(
        graph, lambda name: checkpoint.tensors[name].float32(), KVStorage(graph.layers, num_blocks, block_size)
    )
