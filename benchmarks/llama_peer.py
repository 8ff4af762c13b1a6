"""Logits of llama.cpp for given tokens. For a Python that has llama-cpp-python; imports nothing of ours.

stdin: {"model": GGUF, "threads": n, "chunk": n, "token_ids": [...]}
stdout: a line of JSON {"version", "vocab_size"}, then float32 rows [tokens, vocab] in order, raw.

One sequence in a context of its own, in batches of `chunk`; everything else is llama.cpp's default.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp


def main() -> None:
    request = json.load(sys.stdin)
    ids, chunk = request["token_ids"], request["chunk"]
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), parameters)
    if not model:
        sys.exit(f"llama.cpp can't load {request['model']}")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    context = new_context(model, request["threads"], chunk, len(ids))
    sys.stdout.buffer.write(json.dumps({"version": llama_cpp.__version__, "vocab_size": vocab_size}).encode() + b"\n")
    batch = llama_cpp.llama_batch_init(chunk, 0, 1)
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        fill(batch, part, start)
        if llama_cpp.llama_decode(context, batch):
            sys.exit(f"llama.cpp failed at tokens {start} to {start + len(part)}")
        size = len(part) * vocab_size * ctypes.sizeof(ctypes.c_float)
        sys.stdout.buffer.write(ctypes.string_at(llama_cpp.llama_get_logits(context), size))
    sys.stdout.buffer.flush()


def new_context(model: Any, threads: int, chunk: int, tokens: int) -> Any:
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = tokens
    parameters.n_batch = parameters.n_ubatch = chunk
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        sys.exit("llama.cpp can't make a context")
    return context


def fill(batch: Any, ids: list[int], start: int) -> None:
    batch.n_tokens = len(ids)
    for index, token in enumerate(ids):
        batch.token[index] = token
        batch.pos[index] = start + index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = True


if __name__ == "__main__":
    main()
