"""Causal attention over paged KV in NumPy, one sequence at a time. Reads KV storage, never writes it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.graph.kv_storage import KVStorage
from sojourn.graph.ops import Attention

Array = NDArray[np.float32]

QUERY_TILE = 128  # bounds the scores of a long prefill: heads * 128 * context floats


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows start to stop - 1 of a step belong to one sequence; the first is at `position`, the others follow."""

    start: int
    stop: int
    position: int
    block_table: NDArray[np.int32]


def attend(op: Attention, q: Array, kv: KVStorage, sequences: SequenceOf[SequenceRows]) -> Array:
    """q [T, heads * head_dim] -> the same shape."""
    out = np.empty_like(q)
    for sequence in sequences:
        for start in range(sequence.start, sequence.stop, QUERY_TILE):
            stop = min(start + QUERY_TILE, sequence.stop)
            position = sequence.position + start - sequence.start
            out[start:stop] = _attend_tile(op, q[start:stop], kv, position, sequence.block_table)
    return out


def _attend_tile(op: Attention, q: Array, kv: KVStorage, position: int, block_table: NDArray[np.int32]) -> Array:
    """Queries at positions `position` onward, q [Tq, heads * head_dim], against all keys any of them may see."""
    num_queries = len(q)
    first = 0 if op.window is None else max(0, position - op.window + 1)
    keys, values = kv.read(op.layer, block_table, first, position + num_queries)  # [L, kv_heads, head_dim]
    shared = op.num_heads // op.num_kv_heads  # query heads of one KV head
    grouped = q.reshape(num_queries, op.num_kv_heads, shared, op.head_dim).transpose(1, 2, 0, 3)
    stacked = grouped.reshape(op.num_kv_heads, shared * num_queries, op.head_dim)
    scores: Array = stacked @ keys.transpose(1, 2, 0)  # [kv_heads, shared * Tq, L]
    scores *= op.scale
    if op.softcap is not None:
        scores /= op.softcap
        np.tanh(scores, out=scores)
        scores *= op.softcap
    if num_queries > 1:  # a single query sees exactly the keys that were read
        hidden = _hidden_keys(num_queries, len(keys), position, first, op.window)
        np.copyto(scores.reshape(op.num_kv_heads, shared, num_queries, -1), -np.inf, where=hidden)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Array = scores @ values.transpose(1, 0, 2)  # [kv_heads, shared * Tq, head_dim]
    mixed /= scores.sum(axis=-1, keepdims=True)
    by_head = mixed.reshape(op.num_kv_heads, shared, num_queries, op.head_dim)
    return by_head.transpose(2, 0, 1, 3).reshape(num_queries, -1)


def _hidden_keys(num_queries: int, num_keys: int, position: int, first: int, window: int | None) -> NDArray[np.bool_]:
    """[Tq, L] True where a key lies after its query or has left its window."""
    distance = np.arange(position, position + num_queries)[:, None] - np.arange(first, first + num_keys)[None, :]
    hidden: NDArray[np.bool_] = distance < 0
    if window is not None:
        hidden |= distance >= window
    return hidden
