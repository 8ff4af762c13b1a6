"""Makes `llama-chat`, a complete Hugging Face directory for end-to-end tests: a random Llama with a real tokenizer.

    python make_chat.py

Needs torch, transformers and safetensors. The tokenizer is tests/data/tokenizer/micro. The rows of special tokens are
small, so a greedy text of this model practically never ends by itself and never holds one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import transformers
from make_micro import randomize, stored
from safetensors.torch import save_file

HERE = Path(__file__).parent / "llama-chat"
TOKENIZER = Path(__file__).parents[1] / "tokenizer" / "micro"
VOCAB = 1024
SPECIAL = [0, 1, 2, 1020, 1021, 1022, 1023]
END_OF_TURN, END_OF_TEXT = 2, 0


def main() -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TURN,
        pad_token_id=END_OF_TEXT,
        dtype="bfloat16",
    )
    model = transformers.LlamaForCausalLM(config)
    randomize(model)
    embedding = model.model.embed_tokens.weight.data
    embedding[SPECIAL] *= 0.0625
    HERE.mkdir(exist_ok=True)
    save_file(stored(model, tied=True), HERE / "model.safetensors", {"format": "pt"})
    stated = {**config.to_diff_dict(), "architectures": ["LlamaForCausalLM"]}
    (HERE / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
    generation = {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    (HERE / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / file, HERE / file)


if __name__ == "__main__":
    main()
