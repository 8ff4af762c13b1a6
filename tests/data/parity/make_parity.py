"""Makes the parity goldens: 64 greedy tokens for each of 32 prompts by transformers in float32.

    python make_parity.py --model smollm2 --files /path/to/gguf/files

The weights are the GGUF file's, dequantized. Needs torch, transformers and gguf, which neither the product nor its
tests do. Greedy means arg-max at every step, end-of-text tokens included, so every prompt gives 64 tokens. `gaps` holds
how far the best logit was above the second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from prompts import CHAT, CHINESE, CODE, ENGLISH, as_dialogue

HERE = Path(__file__).parent
NUM_TOKENS = 64
LONG = 200
MODELS = {
    "smollm2": ("smollm2:135m", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "qwen2.5-coder": ("qwen2.5-coder:0.5b", "qwen2.5-coder-0.5b-instruct.gguf"),
    "gemma3": ("gemma3:270m", "gemma-3-270m-q4_k_m.gguf"),
}


def prompt_ids(tokenizer: Any, model: str) -> list[tuple[str, list[int]]]:
    """(kind, ids) of the 32 prompts. transformers drops the BOS that Gemma's GGUF asks for, so it is put back here."""
    plain = [
        (kind, text) for kind, texts in (("english", ENGLISH), ("chinese", CHINESE), ("code", CODE)) for text in texts
    ]
    if tokenizer.chat_template:
        chat = [tokenizer.apply_chat_template(m, add_generation_prompt=True, tokenize=False) for m in CHAT]
    else:
        chat = [as_dialogue(m) for m in CHAT]
    prompts = []
    for kind, text in plain + [("chat", text) for text in chat]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append((kind, [2, *ids] if model == "gemma3" else ids))
    return prompts


@torch.no_grad()
def greedy(model: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """NUM_TOKENS greedy tokens of each prompt and the top-2 gap of each, as one batch padded on the left."""
    longest = max(len(ids) for ids in prompts)
    fed = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = None
    tokens, gaps = [], []
    for _ in range(NUM_TOKENS):
        reply = model(
            fed, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache = reply.past_key_values
        best = reply.logits[:, -1].topk(2).values
        tokens.append(reply.logits[:, -1].argmax(-1))
        gaps.append(best[:, 0] - best[:, 1])
        fed = tokens[-1][:, None]
        mask = torch.cat([mask, torch.ones_like(fed)], dim=1)
        positions = positions[:, -1:] + 1
    return torch.stack(tokens, 1).tolist(), torch.stack(gaps, 1).double().round(decimals=5).tolist()


def batches(prompts: list[tuple[str, list[int]]]) -> list[list[int]]:
    """Indices of prompts that are computed together: the long ones alone, so that the others need little padding."""
    long = [[i] for i, (_, ids) in enumerate(prompts) if len(ids) > LONG]
    return [[i for i, (_, ids) in enumerate(prompts) if len(ids) <= LONG], *long]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--files", type=Path, required=True, help="folder with the GGUF files")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    name, file = MODELS[arguments.model]
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.files, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.files, gguf_file=file, dtype=torch.float32
    ).eval()
    prompts = prompt_ids(tokenizer, arguments.model)
    records: list[dict[str, Any]] = [{"kind": kind, "prompt": ids} for kind, ids in prompts]
    for batch in batches(prompts):
        outputs, gaps = greedy(model, [prompts[i][1] for i in batch])
        for i, output, row in zip(batch, outputs, gaps, strict=True):
            records[i].update(output=output, gaps=row)
    for (kind, ids), record in zip(prompts, records, strict=True):
        print(f"{kind} {len(ids)}: {tokenizer.decode(record['output'])[:80]!r}")
    header = {
        "model": name,
        "file": file,
        "oracle": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    text = json.dumps(header)[:-1] + ', "prompts": [\n' + lines + "\n]}\n"
    (HERE / f"{arguments.model}.json").write_text(text)


if __name__ == "__main__":
    main()
