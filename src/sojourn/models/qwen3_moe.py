"""Qwen3-MoE: Qwen3 with a mixture of experts as feed-forward in its sparse layers."""

from __future__ import annotations

from functools import partial

from sojourn.graph import Graph, GraphBuilder
from sojourn.graph.ops import Value
from sojourn.models.config import ModelConfig, MoeConfig
from sojourn.models.transformer import decoder, feed_forward, self_attention


def build(config: ModelConfig) -> Graph:
    return decoder(config, partial(self_attention, qk_norm=True), _feed_forward)


def _feed_forward(g: GraphBuilder, config: ModelConfig, x: Value, layer: int) -> Value:
    if config.moe is None or not config.moe.sparse_layers[layer]:
        return feed_forward(g, config, x, layer)
    return _mixture(g, config, config.moe, x, f"model.layers.{layer}.mlp")


def _mixture(g: GraphBuilder, config: ModelConfig, moe: MoeConfig, x: Value, prefix: str) -> Value:
    scores = g.linear(x, f"{prefix}.gate.weight", moe.num_experts)
    route = g.moe_route(scores, top_k=moe.num_experts_per_tok, normalize=moe.norm_topk_prob)
    return g.moe_experts(
        x, route, f"{prefix}.experts", intermediate=moe.intermediate_size, activation=config.activation
    )
