"""Qwen3: Llama's wiring with a norm on each head of q and k before the rotation."""

from __future__ import annotations

from functools import partial

from sojourn.graph import Graph
from sojourn.models.config import ModelConfig
from sojourn.models.transformer import decoder, feed_forward, self_attention


def build(config: ModelConfig) -> Graph:
    return decoder(config, partial(self_attention, qk_norm=True), feed_forward)
