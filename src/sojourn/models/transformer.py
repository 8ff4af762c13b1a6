"""Pieces of wiring that several architectures share: weight names and the order of ops, no arithmetic."""

from __future__ import annotations

from typing import Protocol

from sojourn.graph import Graph, GraphBuilder
from sojourn.graph.ops import Value
from sojourn.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
ROPE_FACTORS = "rope_freqs.weight"  # llama.cpp's converter computes Llama 3's scaling into this tensor


def self_attention(
    g: GraphBuilder, config: ModelConfig, x: Value, layer: int, *, qk_norm: bool = False, norm_offset: float = 0.0
) -> Value:
    """Projections, a norm per head of q and k where the model has one, rotation, attention, output projection."""
    prefix = f"model.layers.{layer}.self_attn"
    kind = config.layer_types[layer]
    kv_width = config.num_kv_heads * config.head_dim

    def project(source: Value, name: str, width: int, biased: bool) -> Value:
        return g.linear(source, f"{prefix}.{name}.weight", width, bias=f"{prefix}.{name}.bias" if biased else None)

    def rotate(source: Value, name: str) -> Value:
        if qk_norm:
            weight = f"{prefix}.{name}_norm.weight"
            source = g.rms_norm(source, weight, eps=config.rms_norm_eps, group=config.head_dim, offset=norm_offset)
        return g.rope(source, config.rope[kind], head_dim=config.head_dim, factors=ROPE_FACTORS)

    q = project(x, "q_proj", config.num_heads * config.head_dim, config.attention_bias)
    k = project(x, "k_proj", kv_width, config.attention_bias)
    v = project(x, "v_proj", kv_width, config.attention_bias)
    mixed = g.attention(
        rotate(q, "q"),
        rotate(k, "k"),
        v,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        window=config.window(layer),
        softcap=config.attention_softcap,
    )
    return project(mixed, "o_proj", config.hidden_size, config.attention_output_bias)


def feed_forward(g: GraphBuilder, config: ModelConfig, x: Value, layer: int) -> Value:
    """Gated feed-forward: down(activation(gate(x)) * up(x))."""
    prefix = f"model.layers.{layer}.mlp"

    def project(source: Value, name: str, width: int) -> Value:
        return g.linear(
            source, f"{prefix}.{name}.weight", width, bias=f"{prefix}.{name}.bias" if config.mlp_bias else None
        )

    gate = project(x, "gate_proj", config.intermediate_size)
    up = project(x, "up_proj", config.intermediate_size)
    return project(g.glu(gate, up, config.activation), "down_proj", config.hidden_size)


def language_model_head(g: GraphBuilder, config: ModelConfig, x: Value, *, norm_offset: float = 0.0) -> Value:
    """Final norm and logits of the wanted rows. The head is the embedding where the model says so or has no other."""
    hidden = g.rms_norm(g.select_rows(x), "model.norm.weight", eps=config.rms_norm_eps, offset=norm_offset)
    if config.tie_word_embeddings:
        logits = g.linear(hidden, EMBEDDING, config.vocab_size)
    else:
        logits = g.linear(hidden, "lm_head.weight", config.vocab_size, alternative=EMBEDDING)
    return logits if config.final_softcap is None else g.softcap(logits, config.final_softcap)


class LayerPart(Protocol):
    """Adds one block of one layer to the graph: [T, hidden] -> [T, hidden]."""

    def __call__(self, g: GraphBuilder, config: ModelConfig, x: Value, layer: int, /) -> Value: ...


def decoder(config: ModelConfig, attention: LayerPart, mlp: LayerPart) -> Graph:
    """The pre-norm decoder that Llama established: x + attention(norm(x)), then x + mlp(norm(x)), layer after layer."""
    g = GraphBuilder()
    x = g.embedding(EMBEDDING, vocab_size=config.vocab_size, width=config.hidden_size)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normed = g.rms_norm(x, f"{prefix}.input_layernorm.weight", eps=config.rms_norm_eps)
        x = g.add(x, attention(g, config, normed, layer))
        normed = g.rms_norm(x, f"{prefix}.post_attention_layernorm.weight", eps=config.rms_norm_eps)
        x = g.add(x, mlp(g, config, normed, layer))
    return g.finish(language_model_head(g, config, x))
