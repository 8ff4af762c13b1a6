"""Gemma 3, text part: scaled embeddings, norms before and after each block (their weights mean 1 + w), q/k norms.

Local and global layers alternate; each kind has its own RoPE base. The configuration brings both.
"""

from __future__ import annotations

import math

from sojourn.graph import Graph, GraphBuilder
from sojourn.graph.ops import Value
from sojourn.models.config import ModelConfig
from sojourn.models.transformer import EMBEDDING, feed_forward, language_model_head, self_attention

NORM_OFFSET = 1.0


def build(config: ModelConfig) -> Graph:
    g = GraphBuilder()
    embedded = g.embedding(EMBEDDING, vocab_size=config.vocab_size, width=config.hidden_size)
    x = g.scale(embedded, math.sqrt(config.hidden_size))
    for layer in range(config.num_layers):
        mixed = self_attention(
            g, config, _norm(g, config, x, layer, "input"), layer, qk_norm=True, norm_offset=NORM_OFFSET
        )
        x = g.add(x, _norm(g, config, mixed, layer, "post_attention"))
        fed = feed_forward(g, config, _norm(g, config, x, layer, "pre_feedforward"), layer)
        x = g.add(x, _norm(g, config, fed, layer, "post_feedforward"))
    return g.finish(language_model_head(g, config, x, norm_offset=NORM_OFFSET))


def _norm(g: GraphBuilder, config: ModelConfig, x: Value, layer: int, place: str) -> Value:
    weight = f"model.layers.{layer}.{place}_layernorm.weight"
    return g.rms_norm(x, weight, eps=config.rms_norm_eps, offset=NORM_OFFSET)
