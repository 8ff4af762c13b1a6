"""Step plans for tests, and the loop that a real engine would run around an executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.graph.reference import ReferenceExecutor
from sojourn.records import StepPlan


def make_plan(chunks: Sequence[tuple[Sequence[int], int]], block_tables: np.ndarray) -> StepPlan:
    """`chunks`: (token ids, first position) of each sequence; `block_tables` [S, blocks]."""
    counts = [len(ids) for ids, _ in chunks]
    starts = np.array([start for _, start in chunks], np.int32)
    return StepPlan(
        step=0,
        token_ids=np.concatenate([np.asarray(ids, np.int32) for ids, _ in chunks]),
        positions=np.concatenate([np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, counts, strict=True)]),
        cu_seqlens_q=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        seq_lens=starts + np.array(counts, np.int32),
        block_tables=np.asarray(block_tables, np.int32),
        slots=np.arange(len(chunks), dtype=np.int32),
        samples=np.ones(len(chunks), np.bool_),
        prompt_logprobs=np.zeros(len(chunks), np.bool_),
    )


def run_whole(executor: ReferenceExecutor, ids: Sequence[int]) -> np.ndarray:
    """Logits of every position of one sequence computed in one step, [T, vocab]."""
    table = np.arange(executor.kv.num_blocks)[None, :]
    return executor.logits(executor.forward(make_plan([(ids, 0)], table)))


def greedy(executor: ReferenceExecutor, prompts: Sequence[Sequence[int]], count: int, *, budget: int) -> np.ndarray:
    """`count` greedy tokens for each prompt [S, count]: prefilled in chunks of `budget`, then decoded together."""
    size = executor.kv.block_size
    longest = max(len(ids) for ids in prompts) + count
    per_sequence = -(-longest // size)
    tables = np.arange(len(prompts) * per_sequence).reshape(len(prompts), per_sequence)
    last = []
    for ids, table in zip(prompts, tables, strict=True):
        for start in range(0, len(ids), budget):
            hidden = executor.forward(make_plan([(ids[start : start + budget], start)], table[None, :]))
        last.append(hidden[-1])
    out = np.empty((len(prompts), count), np.int32)
    hidden = np.stack(last)
    for step in range(count):
        out[:, step] = executor.logits(hidden).argmax(axis=-1)
        chunks = [([token], len(ids) + step) for ids, token in zip(prompts, out[:, step], strict=True)]
        hidden = executor.forward(make_plan(chunks, tables))
    return out
