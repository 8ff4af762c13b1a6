"""GGUF tensor names to Hugging Face names, by architecture. Never touches data."""

from __future__ import annotations

import re

ROPE_FACTORS = (
    "rope_freqs.weight"  # divisors of the RoPE frequencies; Hugging Face has no such tensor, so it keeps its name
)

_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
# Gemma normalises both before and after each half of a layer.
_GEMMA3_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_GLOBAL_TENSOR = re.compile(r"(\w+)\.(weight|bias)")


def canonical_name(architecture: str, name: str) -> str | None:
    """The Hugging Face name of the GGUF tensor `name`; None for one that this architecture does not have."""
    if name == ROPE_FACTORS:
        return name
    if match := _LAYER_TENSOR.fullmatch(name):
        layers = _GEMMA3_LAYER if architecture == "gemma3" else _LAYER
        module = layers.get(match[2])
        return module and f"model.layers.{match[1]}.{module}.{match[3]}"
    if match := _GLOBAL_TENSOR.fullmatch(name):
        module = _GLOBAL.get(match[1])
        return module and f"{module}.{match[2]}"
    return None
