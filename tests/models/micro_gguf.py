"""A micro Llama as a GGUF file, written with the `gguf` package from the same weights as its directory."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from sojourn.weights.checkpoint import open_checkpoint

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GLOBAL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(directory: Path, file: Path, *, head: bool = True, rope_factors: np.ndarray | None = None) -> Path:
    """The Llama in `directory` as `file`, with or without its output matrix and llama.cpp's tensor of RoPE divisors."""
    checkpoint = open_checkpoint(directory)
    config = checkpoint.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    for name in checkpoint.tensors:
        if name == "lm_head.weight" and not head:
            continue
        tensor = checkpoint.tensors[name].float32()
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            tensor = interleave_rows(tensor, heads)
        writer.add_tensor(gguf_name(name), tensor)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def interleave_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order of llama.cpp, which rotates neighbouring columns instead of the two halves of a head."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in GLOBAL_NAMES:
        return f"{GLOBAL_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"
