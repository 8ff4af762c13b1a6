"""Architectures by name: a configuration in, the graph of its forward pass out."""

from __future__ import annotations

from collections.abc import Callable

from sojourn.errors import UnsupportedModel
from sojourn.graph import Graph
from sojourn.models import gemma3, llama, mistral, qwen2, qwen3, qwen3_moe
from sojourn.models.config import ModelConfig

_BUILDERS: dict[str, Callable[[ModelConfig], Graph]] = {
    "gemma3_text": gemma3.build,
    "llama": llama.build,
    "mistral": mistral.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3_moe": qwen3_moe.build,
}


def build_graph(config: ModelConfig) -> Graph:
    """The graph, not yet bound to a checkpoint (see `Graph.bind`). UnsupportedModel names an unknown architecture."""
    builder = _BUILDERS.get(config.architecture)
    if builder is None:
        raise UnsupportedModel(
            f"Model architecture {config.architecture!r} is not supported. Supported: {', '.join(sorted(_BUILDERS))}."
        )
    return builder(config)


__all__ = ["ModelConfig", "build_graph"]
