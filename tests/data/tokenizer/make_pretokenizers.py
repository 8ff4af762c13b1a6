"""Makes pretokenizers.json.gz: ids by llama.cpp for the micro vocabulary under every pre-tokenizer of GGUF files.

    python make_pretokenizers.py

Needs llama-cpp-python and gguf. Each family gets a GGUF file of the micro tokenizer's tokens and merges and nothing
else, so the ids show how the text was cut wherever a merge could cross the cut.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import gguf
import llama_cpp
from corpus import strings

HERE = Path(__file__).parent
# One name of each family; the others are aliases.
FAMILIES = [
    "default",
    "gpt-2",
    "smollm",
    "llama-bpe",
    "glm4",
    "chatglm-bpe",
    "qwen2",
    "qwen35",
    "minicpm5",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "tekken",
    "gpt-4o",
    "bloom",
    "viking",
    "bailingmoe",
    "seed-coder",
]


def micro_vocabulary() -> tuple[list[str], list[int], list[str]]:
    data = json.loads((HERE / "micro" / "tokenizer.json").read_text(encoding="utf-8"))
    texts = {n: text for text, n in data["model"]["vocab"].items()}
    types = dict.fromkeys(texts, 1)
    for token in data["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    merges = [" ".join(merge) for merge in data["model"]["merges"]]
    return [texts[n] for n in range(len(texts))], [types[n] for n in range(len(types))], merges


def write_gguf(path: Path, pre: str) -> None:
    tokens, types, merges = micro_vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    texts = [
        *strings()[::6],
        "สวัสดีชาวโลก",
        "It'S CamelCase HTTPServer x86_64 1234567 \n\n  tab\t",
        "e\u0301a\u0308 n\u0303o",
    ]
    families: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        for pre in FAMILIES:
            path = Path(directory) / "vocabulary.gguf"
            write_gguf(path, pre)
            model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            ids = [model.tokenize(text.encode(), add_bos=False, special=True) if text else [] for text in texts]
            add_bos = llama_cpp.llama_vocab_get_add_bos(model._model.vocab)
            families[pre] = {"add_bos": add_bos, "ids": ids}
    data = json.dumps({"texts": texts, "families": families}, separators=(",", ":")).encode()
    with gzip.GzipFile(HERE / "pretokenizers.json.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(data)


if __name__ == "__main__":
    main()
