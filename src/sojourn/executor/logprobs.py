"""Log-probabilities of tokens, from rows of logits. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.exponential import exp_nonpositive
from sojourn.records import TokenLogprobs

LANES = 16


def top_ids(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest entries of a row [vocab], largest first; of equal ones the lowest id is preferred."""
    count = min(count, len(row))
    if count <= 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > threshold)
    ids = np.concatenate([above, np.flatnonzero(row == threshold)[: count - len(above)]])
    return ids[np.lexsort((ids, -row[ids]))]


def sum_in_lanes(values: NDArray[np.float32]) -> float:
    """Sum of a row in float64: 16 lanes, each in order, then lane by lane. The order never depends on the batch."""
    padded = np.zeros(-(-len(values) // LANES) * LANES, np.float64)
    padded[: len(values)] = values
    total = 0.0
    for lane in np.add.reduce(padded.reshape(-1, LANES), axis=0).tolist():
        total += lane
    return total


def token_logprobs(logits: NDArray[np.float32], token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each row [R, vocab]: the given token's logprob and rank, and the `counts[row]` most likely tokens."""
    entries = []
    for row, token_id, count in zip(logits, token_ids, counts, strict=True):
        highest = row.max()
        log_total = float(highest) + math.log(sum_in_lanes(exp_nonpositive(row - highest)))
        best = top_ids(row, count)
        entries.append(
            TokenLogprobs(
                logprob=float(row[token_id]) - log_total,
                rank=1 + int(np.count_nonzero(row > row[token_id])),
                top_ids=best.tolist(),
                top_logprobs=[float(value) - log_total for value in row[best]],
            )
        )
    return entries
