"""Qwen2 and Qwen2.5: Llama's wiring with biases on q, k and v, which the configuration brings."""

from __future__ import annotations

from sojourn.graph import Graph
from sojourn.models.config import ModelConfig
from sojourn.models.transformer import decoder, feed_forward, self_attention


def build(config: ModelConfig) -> Graph:
    return decoder(config, self_attention, feed_forward)
