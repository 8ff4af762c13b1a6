"""Accuracy of a backend and of llama.cpp, side by side, against the float32 reference on a fixed text.

    make accuracy [ARGS="--model smollm2:135m --backend native --kv-cache-dtype f16 int8"]

The text is benchmarks/data/accuracy.txt, its first 4,000 tokens by the model's own tokenizer, computed as one sequence
in chunks. The gate: perplexity within 1% of the reference's, and a mean KL of at most 1.1 times llama.cpp's own.
Exit code 1 when it is missed. The reference's logits are kept in the temporary folder (up to 4 GB for a model), under
the hash of everything they depend on: a second run finds them there, and `--forget` removes them at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sojourn import machine
from sojourn.bench.tables import table
from sojourn.cli.library_pools import limit_library_pools

limit_library_pools()  # before NumPy is imported

import numpy as np  # noqa: E402

from benchmarks.divergence import Array, Divergence  # noqa: E402
from sojourn.config import CacheConfig, EngineConfig, SchedulerConfig  # noqa: E402
from sojourn.core.build import build_from_model  # noqa: E402
from sojourn.executor.model import Model  # noqa: E402
from sojourn.executor.runner import HEAD_ROWS  # noqa: E402
from sojourn.frontend.tokenizer import load_tokenizer  # noqa: E402
from sojourn.records import StepPlan  # noqa: E402

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src" / "sojourn"
TEXT = HERE / "data" / "accuracy.txt"
MODELS = ("smollm2:135m", "qwen2.5-coder:0.5b", "gemma3:270m")
BLOCK = 32
PERPLEXITY_WITHIN, KL_FACTOR = 0.01, 1.1

Chunks = Iterator[Array]  # logits of one chunk after the other, [tokens of the chunk, vocab]


def main() -> None:
    args = parse()
    rows: list[tuple[str, ...]] = [
        ("model", "engine", "perplexity", "ratio", "mean KL", "of llama's", "p99 KL", "max KL", "top-1", "")
    ]
    missed = False
    for name in args.model:
        model = Model.from_pretrained(name)
        ids = tokens(model, args.tokens)
        reference = kept_reference(args, model, ids)
        theirs = None
        if args.llama_python is not None:
            theirs = measure(reference, ids, args.chunk, llama_logits(args, model, ids))
            rows.append(cells(name, "llama.cpp", theirs, "", ""))
        for dtype in args.kv_cache_dtype:
            subject, label = our_logits(args, model, ids, dtype)
            ours = measure(reference, ids, args.chunk, subject)
            ok = meets(ours, theirs)
            missed |= not ok
            factor = "" if theirs is None else f"{ours.mean_kl / theirs.mean_kl:.2f}x"
            rows.append(cells(name, label, ours, factor, "met" if ok else "MISSED"))
        if args.forget:
            Path(reference.filename).unlink()
    print(table(rows))
    print(
        f"{args.tokens} tokens of {TEXT.name}; needs: ratio within {PERPLEXITY_WITHIN:.0%} of 1, "
        f"mean KL at most {KL_FACTOR}x llama.cpp's"
    )
    sys.exit(int(missed))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--backend", default="auto", help="the backend under test")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto"], help="one row for each")
    parser.add_argument(
        "--llama-python", type=Path, help="Python with llama-cpp-python; without it llama.cpp is left out"
    )
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--chunk", type=int, default=256, help="tokens computed in one step, by every engine")
    parser.add_argument("--threads", type=int, default=machine.usable_threads()[0])
    parser.add_argument("--forget", action="store_true", help="remove the kept reference logits at the end")
    return parser.parse_args()


def tokens(model: Model, count: int) -> list[int]:
    checkpoint = model.checkpoint
    metadata = checkpoint.metadata if checkpoint.directory is None else None
    tokenizer = load_tokenizer(directory=checkpoint.directory, metadata=metadata)
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    if len(ids) < count:
        sys.exit(f"{TEXT} has only {len(ids)} tokens of this model, not {count}")
    return ids[:count]


def measure(reference: Array, ids: list[int], chunk: int, subject: Chunks) -> Divergence:
    """Every position but the last, which nothing follows."""
    found, targets, start = Divergence(), np.array(ids[1:], np.int64), 0
    for logits in subject:
        expected = targets[start : start + len(logits)]
        found.add(reference[start : start + len(expected)], logits[: len(expected)], expected)
        start += len(logits)
    if start != len(ids):
        sys.exit(f"the engine gave logits of {start} tokens instead of {len(ids)}")
    return found


def meets(ours: Divergence, theirs: Divergence | None) -> bool:
    close = theirs is None or ours.mean_kl <= KL_FACTOR * theirs.mean_kl
    return close and abs(ours.perplexity_ratio - 1) <= PERPLEXITY_WITHIN


def cells(model: str, engine: str, found: Divergence, factor: str, verdict: str) -> tuple[str, ...]:
    p99, largest = np.percentile(found.kl, 99), max(found.kl)
    return (
        model,
        engine,
        f"{found.perplexity:.4f}",
        f"{found.perplexity_ratio:.4f}",
        f"{found.mean_kl:.6f}",
        factor,
        f"{p99:.5f}",
        f"{largest:.4f}",
        f"{found.agreed / len(found.kl):.2%}",
        verdict,
    )


def our_logits(args: argparse.Namespace, model: Model, ids: list[int], dtype: str) -> tuple[Chunks, str]:
    """Logits through the Backend seam, and what the backend calls itself."""
    config = EngineConfig(
        model=str(model.checkpoint.path),
        backend=args.backend,
        threads=args.threads,
        scheduler=SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=args.chunk),
        cache=CacheConfig(block_size=BLOCK, num_kv_blocks=blocks(ids), kv_cache_dtype=dtype),
    )
    engine = build_from_model(model, config)
    label = f"{engine.info.backend}, {engine.info.isa}" + ("" if dtype == "auto" else f", KV {dtype}")
    return computed(engine.runner.backend, ids, args.chunk), label  # type: ignore[attr-defined]


def computed(backend: Any, ids: list[int], chunk: int) -> Chunks:
    """One sequence in its own blocks, `chunk` tokens a step, logits of every token."""
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        hidden = backend.forward(plan(start // chunk, part, start, blocks(ids)))
        # As many rows at once as the runner asks for: a backend need not have room for more.
        yield np.concatenate([backend.logits(hidden[row : row + HEAD_ROWS]) for row in range(0, len(part), HEAD_ROWS)])


def blocks(ids: list[int]) -> int:
    return -(-len(ids) // BLOCK)


def plan(step: int, ids: list[int], start: int, num_blocks: int) -> StepPlan:
    return StepPlan(
        step=step,
        token_ids=np.array(ids, np.int32),
        positions=np.arange(start, start + len(ids), dtype=np.int32),
        cu_seqlens_q=np.array([0, len(ids)], np.int32),
        seq_lens=np.array([start + len(ids)], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        slots=np.zeros(1, np.int32),
        samples=np.zeros(1, np.bool_),
        prompt_logprobs=np.zeros(1, np.bool_),
    )


def llama_logits(args: argparse.Namespace, model: Model, ids: list[int]) -> Chunks:
    request = {
        "model": str(model.checkpoint.path),
        "threads": args.threads,
        "chunk": args.chunk,
        "token_ids": ids,
    }
    command = [str(args.llama_python), str(HERE / "llama_peer.py")]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        heading = process.stdout.readline()
        for start in range(0, len(ids), args.chunk) if heading else ():
            rows = min(args.chunk, len(ids) - start)
            vocab = json.loads(heading)["vocab_size"]
            yield np.frombuffer(process.stdout.read(4 * rows * vocab), np.float32).reshape(rows, vocab)
        if process.wait():
            log.seek(0)
            sys.exit(f"llama.cpp failed:\n{log.read()[-2000:]}")


def kept_reference(args: argparse.Namespace, model: Model, ids: list[int]) -> np.memmap:
    """The reference's logits [tokens, vocab], computed once for the same file, tokens and source."""
    name = f"sojourn-reference-{model.checkpoint.path.stem}-{len(ids)}"
    folder = Path(tempfile.gettempdir())
    path = folder / f"{name}-{fingerprint(model, ids, args.chunk)}.f32"
    shape = (len(ids), model.config.vocab_size)
    if not path.exists():
        for outdated in folder.glob(f"{name}-*"):
            outdated.unlink()
        began, unfinished = time.monotonic(), path.with_suffix(".part")
        backend = model.reference_backend(blocks(ids), BLOCK, threads=args.threads)
        with unfinished.open("wb") as file:
            for logits in computed(backend, ids, args.chunk):
                file.write(logits.astype(np.float32, copy=False).tobytes())
                print(f"\rreference: {file.tell() / (4 * np.prod(shape)):.0%}", end="", file=sys.stderr, flush=True)
        unfinished.rename(path)
        print(f", {time.monotonic() - began:.0f} s, kept in {path}", file=sys.stderr)
    return np.memmap(path, np.float32, "r", shape=shape)


def fingerprint(model: Model, ids: list[int], chunk: int) -> str:
    """Of everything that decides the reference's logits: the model file, the tokens, and the code that computes.

    The native package only dequantizes here, and its tests hold it to the reader's own NumPy.
    """
    digest = hashlib.sha256(json.dumps([ids, chunk, np.__version__]).encode())
    stat = model.checkpoint.path.stat()
    digest.update(f"{model.checkpoint.path}{stat.st_size}{stat.st_mtime_ns}".encode())
    for package in ("graph", "models", "weights"):
        for source in sorted((SOURCES / package).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
