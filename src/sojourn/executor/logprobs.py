"""Log-probabilities of tokens, from rows of logits, and the sums that sampling shares with them. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.exponential import exp_nonpositive
from sojourn.records import TokenLogprobs

LANES = 16
RUN = 1024  # entries that are summed together; a row is a sequence of runs


def top_ids(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest entries of a row [vocab], largest first; of equal ones the lowest id is preferred."""
    count = min(count, len(row))
    if count <= 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > threshold)
    ids = np.concatenate([above, np.flatnonzero(row == threshold)[: count - len(above)]])
    return ids[np.lexsort((ids, -row[ids]))]


def sum_runs(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Float64 sums of each run of 1,024 entries: in 16 lanes, each in order, then lane by lane.

    Sixteen lanes suit every instruction set, and the order depends on nothing but the row.
    """
    runs = -(-len(values) // RUN)
    padded = np.zeros(runs * RUN, np.float64)
    padded[: len(values)] = values
    by_lane = padded.reshape(runs, RUN // LANES, LANES)
    lanes = np.zeros((runs, LANES), np.float64)
    for step in range(RUN // LANES):
        lanes += by_lane[:, step]
    sums = lanes[:, 0].copy()
    for lane in range(1, LANES):
        sums += lanes[:, lane]
    return sums


def total(values: NDArray[np.float32]) -> float:
    """Sum of a row in float64: run by run."""
    return float(np.cumsum(sum_runs(values))[-1])


def logprob(logit: float, highest: float, weight_total: float) -> float:
    """Of a logit in a row with this maximum, where exp(logit - maximum) sums to `weight_total`."""
    return logit - (highest + math.log(weight_total))


def token_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs | None]:
    """For each row [R, vocab]: the given token's logprob and rank, and the `counts[row]` most likely tokens.

    None for a row with a NaN or an infinite maximum.
    """
    entries: list[TokenLogprobs | None] = []
    for row, token_id, count in zip(logits, token_ids, counts, strict=True):
        maximum = row.max()
        if not np.isfinite(maximum):
            entries.append(None)
            continue
        highest, weight_total = float(maximum), total(exp_nonpositive(row - maximum))
        best = top_ids(row, count)
        entries.append(
            TokenLogprobs(
                logprob=logprob(float(row[token_id]), highest, weight_total),
                rank=1 + int(np.count_nonzero(row > row[token_id])),
                top_ids=best.tolist(),
                top_logprobs=[logprob(value, highest, weight_total) for value in row[best].tolist()],
            )
        )
    return entries
