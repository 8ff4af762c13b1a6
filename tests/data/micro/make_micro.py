"""Makes the micro models (random weights) and their goldens: logits and greedy tokens by transformers.

    python make_micro.py

Needs torch, transformers and safetensors. Writes beside itself `<weights>/model.safetensors` in bfloat16; `cases.json`
with the Hugging Face config of each case and the weights it goes with; `goldens.npz` with, per case, float32 logits at
POSITIONS of one forward pass over the prompt, and greedy tokens that continue its first GREEDY_PROMPT tokens.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
PROMPT_TOKENS = 256
POSITIONS = [0, 1, 15, 16, 31, 32, 63, 127, 200, 255]
GREEDY_PROMPT, GREEDY_TOKENS = 200, 24
ORIGINAL_CONTEXT, FACTOR = 32, 8.0

SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ORIGINAL = {"original_max_position_embeddings": ORIGINAL_CONTEXT}
LLAMA3 = {**ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
READ_BY_NOBODY = {"id2label", "label2id", "chunk_size_feed_forward", "_name_or_path", "problem_type", "return_dict"}


def configs() -> dict[str, tuple[str, transformers.PreTrainedConfig]]:
    """Case -> (folder of its weights, config). Cases of one folder differ only in their config."""
    llama = transformers.LlamaConfig

    def scaled(kind: str, context: int, **more: float) -> transformers.PreTrainedConfig:
        parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": FACTOR, **more}
        return llama(**{**SMALL, "max_position_embeddings": context}, rope_parameters=parameters)

    narrow = {**SMALL, "head_dim": 32}
    moe = {"moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return {
        "llama": ("llama", llama(**SMALL)),
        "llama-tied": ("llama", llama(**{**SMALL, "tie_word_embeddings": True})),
        "llama-linear": ("llama", scaled("linear", ORIGINAL_CONTEXT)),
        "llama-dynamic": ("llama", scaled("dynamic", ORIGINAL_CONTEXT)),
        "llama-llama3": ("llama", scaled("llama3", 256, **LLAMA3)),
        "llama-yarn": ("llama", scaled("yarn", 256, **ORIGINAL)),
        "mistral": ("llama", transformers.MistralConfig(**SMALL, sliding_window=16)),
        "qwen2": ("qwen2", transformers.Qwen2Config(**SMALL)),
        "qwen3": ("qwen3", transformers.Qwen3Config(**narrow)),
        "qwen3_moe": ("qwen3_moe", transformers.Qwen3MoeConfig(**narrow, **moe)),
        "gemma3": (
            "gemma3",
            transformers.Gemma3TextConfig(
                **{**narrow, "num_hidden_layers": 4, "tie_word_embeddings": True},
                layer_types=kinds,
                sliding_window=16,
                query_pre_attn_scalar=24,
                final_logit_softcapping=20.0,
            ),
        ),
    }


def randomize(model: torch.nn.Module) -> None:
    """Weights large enough that attention is peaked and logits spread, biases and norms away from 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            base = parameter.data if name.endswith("weight") else torch.zeros_like(parameter)
            value = base + 0.3 * noise
        else:
            value = noise * (0.15 if "embed" in name else 1.6 * parameter.shape[-1] ** -0.5)
        parameter.data = value.to(torch.bfloat16).to(torch.float32)  # what the file can hold exactly


def stored(model: torch.nn.Module, tied: bool) -> dict[str, torch.Tensor]:
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    return {name: tensor for name, tensor in state.items() if not (tied and name == "lm_head.weight")}


@torch.no_grad()
def golden(model: Any, prompt: torch.Tensor, dynamic: bool) -> dict[str, np.ndarray]:
    """Dynamic NTK in transformers changes its base with each pass, so only one at the full limit is comparable."""
    logits = model(prompt).logits[0, POSITIONS].numpy()
    if dynamic:
        return {"logits": logits}
    tokens = prompt[:, :GREEDY_PROMPT]
    for _ in range(GREEDY_TOKENS):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return {"logits": logits, "greedy": tokens[0, GREEDY_PROMPT:].numpy().astype(np.int32)}


def main() -> None:
    torch.set_num_threads(1)
    prompt = torch.randint(3, 256, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    goldens: dict[str, np.ndarray] = {"prompt": prompt[0].numpy().astype(np.int32), "positions": np.array(POSITIONS)}
    cases: dict[str, Any] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for case, (folder, config) in configs().items():
        stated = json.loads(config.to_json_string(use_diff=False))
        kept = {key: value for key, value in stated.items() if key not in READ_BY_NOBODY}
        cases[case] = {"weights": folder, "config": kept}
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
        ).eval()
        if folder not in weights:
            randomize(model)
            weights[folder] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            (HERE / folder).mkdir(exist_ok=True)
            save_file(stored(model, config.tie_word_embeddings), HERE / folder / "model.safetensors", {"format": "pt"})
        state = dict(weights[folder])
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        for name, array in golden(model, prompt, case == "llama-dynamic").items():
            goldens[f"{case}/{name}"] = array
        print(case, float(np.abs(goldens[f"{case}/logits"]).max()), goldens.get(f"{case}/greedy"), flush=True)
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    np.savez_compressed(HERE / "goldens.npz", **goldens)


if __name__ == "__main__":
    main()
