"""Makes the tokenizer goldens: ids of corpus.py's strings by llama.cpp for three GGUF vocabularies, and where
transformers differs.

    python make_goldens.py DIRECTORY_WITH_THE_GGUF_FILES

Needs llama-cpp-python and transformers (with gguf). Writes strings.json.gz, <vocabulary>.json.gz beside this file.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import llama_cpp
from corpus import strings
from transformers import AutoTokenizer

HERE = Path(__file__).parent
FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder": "qwen2.5-coder-0.5b-instruct.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
}


def write(name: str, value: object) -> None:
    data = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    with gzip.GzipFile(HERE / f"{name}.json.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(data)


def llama_ids(path: Path, texts: list[str], *, special: bool) -> list[list[int]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=special) if text else [] for text in texts]


def main(directory: Path) -> None:
    texts = strings()
    write("strings", texts)
    for name, file in FILES.items():
        parsed = llama_ids(directory / file, texts, special=True)
        plain = llama_ids(directory / file, texts, special=False)
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=file)
        theirs = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        # Each list is a text's ids; `plain` and `transformers` hold only the texts where they differ from `parsed`.
        write(
            name,
            {
                "parsed": parsed,
                "plain": {n: ids for n, ids in enumerate(plain) if ids != parsed[n]},
                "transformers": {n: ids for n, ids in enumerate(theirs) if ids != parsed[n]},
            },
        )
        differing = sum(ids != parsed[n] for n, ids in enumerate(theirs))
        print(f"{name}: {len(texts)} strings, {sum(map(len, parsed))} ids, {differing} differ in transformers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
