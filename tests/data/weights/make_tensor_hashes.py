"""Makes tensor_hashes.json: SHA-256 of float32 weights as `transformers` reads them from the real GGUF files.

    python make_tensor_hashes.py DIRECTORY_OF_GGUF_FILES

Needs torch, transformers and gguf. The tensors are those that a converter changes or that use an unusual format.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

FILES = {
    "smollm2:135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder:0.5b": "qwen2.5-coder-0.5b-instruct.gguf",
    "gemma3:270m": "gemma-3-270m-q4_k_m.gguf",
}
TENSORS = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.3.input_layernorm.weight",
    "model.layers.3.self_attn.q_proj.weight",
    "model.layers.3.self_attn.k_proj.weight",
    "model.layers.3.self_attn.v_proj.weight",
    "model.layers.3.self_attn.o_proj.weight",
    "model.layers.3.self_attn.q_proj.bias",
    "model.layers.3.self_attn.q_norm.weight",
    "model.layers.3.post_attention_layernorm.weight",
    "model.layers.3.pre_feedforward_layernorm.weight",
    "model.layers.3.mlp.down_proj.weight",
]


def main() -> None:
    result = {}
    for name, file in FILES.items():
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1], gguf_file=file, dtype=torch.float32)
        state = model.state_dict()
        result[name] = {
            tensor: hashlib.sha256(state[tensor].numpy().astype("<f4").tobytes()).hexdigest()
            for tensor in TENSORS
            if tensor in state
        }
    Path(__file__).with_name("tensor_hashes.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
