"""The interpreter's slow twin: a Llama forward pass over whole sequences in float64, without graph, blocks or batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sojourn.models import ModelConfig


def logits(config: ModelConfig, weights: Mapping[str, np.ndarray], ids: Sequence[int]) -> np.ndarray:
    """[T, vocab] of an untied Llama or Mistral with default RoPE."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["model.embed_tokens.weight"][np.asarray(ids)]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        part = {name.removeprefix(prefix): array for name, array in w.items() if name.startswith(prefix)}
        x = x + attention(config, part, norm(x, part["input_layernorm.weight"], config), config.window(layer))
        h = norm(x, part["post_attention_layernorm.weight"], config)
        gate = h @ part["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["mlp.up_proj.weight"].T)) @ part["mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"], config) @ w["lm_head.weight"].T


def norm(x: np.ndarray, weight: np.ndarray, config: ModelConfig) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.rms_norm_eps) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """One head x [T, head_dim]; each pair of columns is a complex number turned by its position."""
    half = x.shape[1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def attention(config: ModelConfig, w: Mapping[str, np.ndarray], x: np.ndarray, window: int | None) -> np.ndarray:
    size, theta = config.head_dim, config.rope["full_attention" if window is None else "sliding_attention"].theta
    q, k, v = (x @ w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    outputs = []
    for head in range(config.num_heads):
        mine = slice(head * size, (head + 1) * size)
        kv_head = head * config.num_kv_heads // config.num_heads
        shared = slice(kv_head * size, (kv_head + 1) * size)
        scores = rotate(q[:, mine], theta) @ rotate(k[:, shared], theta).T / np.sqrt(size)
        age = np.arange(len(x))[:, None] - np.arange(len(x))[None, :]
        visible = (age >= 0) & (age < (window or len(x)))
        weights = np.where(visible, np.exp(scores - scores.max()), 0.0)
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, shared])
    return np.concatenate(outputs, axis=1) @ w["self_attn.o_proj.weight"].T
