"""Makes sentencepiece.json.gz: a small SentencePiece vocabulary and llama.cpp's ids for it, with and without the space
prefix. The vocabulary is trained with sentencepiece on corpus.py.

    python make_sentencepiece.py

Needs sentencepiece, gguf and llama-cpp-python.
"""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import sentencepiece
from corpus import strings

HERE = Path(__file__).parent
CASES = [{}, {"add_space_prefix": False}, {"add_bos_token": False, "add_eos_token": True}]


def trained() -> dict[str, Any]:
    model = io.BytesIO()
    # Mostly Latin text, so that the rare characters stay out of the vocabulary and need bytes.
    latin = [text for text in strings() if text.strip() and "\0" not in text and max(text) < "\u0500"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(latin),
        model_writer=model,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(n) for n in ids],
        "tokenizer.ggml.scores": [processor.get_score(n) for n in ids],
        "tokenizer.ggml.token_type": [
            2 if processor.is_unknown(n) else 3 if processor.is_control(n) else 6 if processor.is_byte(n) else 1
            for n in ids
        ],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    # A text that begins with BOS is left out: llama.cpp adds a second one there.
    texts = [text for text in strings()[::8] if not text.startswith("<s>")]
    metadata = trained()
    cases = []
    with tempfile.TemporaryDirectory() as directory:
        for options in CASES:
            more = {f"tokenizer.ggml.{key}": value for key, value in options.items()}
            path = Path(directory) / "vocabulary.gguf"
            write_gguf(path, {**metadata, **more})
            model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            ids = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]
            cases.append({"metadata": more, "ids": ids})
    data = json.dumps({"metadata": metadata, "texts": texts, "cases": cases}, separators=(",", ":")).encode()
    with gzip.GzipFile(HERE / "sentencepiece.json.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(data)


if __name__ == "__main__":
    main()
