"""Converts a Hugging Face model's tensors to a GGUF file with the rules of llama.cpp's converter; for the tests only.

Written from those rules and independent of the reader under test: it names tensors as GGUF does, interleaves the rotary
rows of llama, adds 1 to Gemma's norms and stacks experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(architecture: str, name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in GLOBAL:
        return f"{GLOBAL[module]}.{kind}"
    layer, _, rest = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{(GEMMA_NAMES if architecture == 'gemma3' else NAMES)[rest]}.{kind}"


def converted(architecture: str, name: str, data: NDArray[np.float32], heads: dict[str, int]) -> NDArray[np.float32]:
    for projection, count in heads.items():
        if architecture == "llama" and f"{projection}_proj" in name:
            split = data.reshape(count, 2, data.shape[0] // count // 2, *data.shape[1:])
            return np.ascontiguousarray(split.swapaxes(1, 2).reshape(data.shape))
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return data + np.float32(1)
    return data


def metadata_of(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The metadata llama.cpp's converter writes for this config."""
    found = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    if architecture != "llama":
        found |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if architecture == "qwen3moe":
        found |= {
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    if architecture == "gemma3":
        found["attention.sliding_window"] = config["sliding_window"]
    return found


def write_gguf(
    path: Path,
    architecture: str,
    tensors: Arrays,
    metadata: dict[str, Any],
    *,
    heads: tuple[int, int],
    format: str = "F32",
) -> Path:
    """Matrices are stored as `format`, vectors as F32. `metadata` keys without a dot get the architecture's prefix."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, content in metadata.items():
        full = key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}"
        add_value(writer, full, content)
    kind = gguf.GGMLQuantizationType[format]
    for name, array in tensors.items():
        data = converted(architecture, name, array.astype(np.float32), {"q": heads[0], "k": heads[1]})
        if data.ndim > 1 and format != "F32":
            quantized = gguf.quants.quantize(data, kind)
            writer.add_tensor(gguf_name(architecture, name), quantized, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(architecture, name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, content: Any) -> None:
    if isinstance(content, bool):
        writer.add_bool(key, content)
    elif isinstance(content, int):
        writer.add_uint32(key, content)
    elif isinstance(content, float):
        writer.add_float32(key, content)
    elif isinstance(content, str):
        writer.add_string(key, content)
    else:
        writer.add_array(key, content)
