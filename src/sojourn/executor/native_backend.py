"""The native backend: a graph lowered once to the C++ executor, then one GIL-free call per step.

Owns the executor and through it the packed weights, the buffers and the KV memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import StartupError
from sojourn.executor.lowering import Lowering, unsupported
from sojourn.graph import Graph
from sojourn.native import Executor, ThreadPool, isas, missing_isas
from sojourn.records import StepPlan
from sojourn.weights.checkpoint import Checkpoint

__all__ = ["NativeBackend", "choose_isa", "unsupported"]

ISA_VARIABLE = "SOJOURN_ISA"


def choose_isa() -> tuple[str, str]:
    """The best instruction set of this machine, or the one that SOJOURN_ISA forces, and why. Raises StartupError."""
    available, missing = isas(), missing_isas()
    wanted = os.environ.get(ISA_VARIABLE)
    if wanted in missing:
        lacking = ", ".join(missing[wanted])
        raise StartupError(f"{ISA_VARIABLE}={wanted}: this CPU lacks {lacking}. It runs {', '.join(available)}.")
    if wanted and wanted not in available:
        raise StartupError(
            f"{ISA_VARIABLE}={wanted}: this build has no such kernels. Here it can be {', '.join(available)}."
        )
    if wanted:
        return wanted, f"as {ISA_VARIABLE} says; {available[0]} is the best this CPU runs"
    if not missing:
        return available[0], "the best there are kernels for"
    better = list(missing)[-1]
    return available[0], f"{better} needs {', '.join(missing[better])}, which this CPU lacks"


class NativeBackend:
    """`max_rows` is the most tokens of a step. K and V are kept in `kv_dtype`: f16, f32 or int8."""

    def __init__(
        self,
        graph: Graph,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        threads: int,
        kv_dtype: str = "f16",
        on_weight: Callable[[int, int], None] | None = None,
    ) -> None:
        self.isa, self.isa_reason = choose_isa()
        self._executor = Executor(self.isa, threads, max_rows)
        lowering = Lowering(self._executor, checkpoint, on_weight or (lambda loaded, total: None))
        lowering.add_kv(graph, num_blocks, block_size, kv_dtype)
        self._hidden = lowering.section(graph.body, graph.hidden)
        self._executor.begin_head(lowering.take(graph.selected))
        self._logits = lowering.section(graph.head, graph.logits)
        checkpoint.release()
        self._max_rows = max_rows
        self._hidden_width = graph.hidden.width
        self._vocab_size = graph.logits.width
        self._logits_stride = self._executor.padded_width(self._logits)

    @property
    def pool(self) -> ThreadPool:
        """The worker threads, idle between calls."""
        return self._executor.pool

    @property
    def weight_bytes(self) -> int:
        return self._executor.matrix_bytes

    def step_bytes(self, max_num_seqs: int, context: int) -> int:
        """What the largest step takes beside weights, K and V: all rows, the last of `context`, and their logits."""
        hidden = np.dtype(np.float32).itemsize * self._max_rows * self._hidden_width
        return hidden + self._executor.step_bytes(context, max_num_seqs)

    def allocate_kv(self, num_blocks: int) -> None:
        """For a backend that was made without KV blocks, since their number follows from what the rest takes."""
        self._executor.allocate_kv(num_blocks)

    def forward(self, plan: StepPlan) -> NDArray[np.float32]:
        """Computes the plan's T tokens and writes their K and V. -> [T, hidden], rows to be given to `logits`."""
        hidden = np.empty((plan.num_tokens, self._hidden_width), np.float32)
        self._executor.forward(
            plan.token_ids, plan.positions, plan.cu_seqlens_q, plan.block_tables, self._hidden, hidden
        )
        return hidden

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of `forward`'s result [R, hidden] -> [R, vocab]."""
        logits = np.empty((len(hidden), self._logits_stride), np.float32)
        self._executor.head(np.ascontiguousarray(hidden), self._logits, logits)
        return logits[:, : self._vocab_size]

    def argmax(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The best token of each row and its logit, which is NaN if any of the row's is. The lowest id wins a tie."""
        ids, maxima = np.empty(len(hidden), np.int32), np.empty(len(hidden), np.float32)
        self._executor.head_argmax(np.ascontiguousarray(hidden), self._logits, ids, maxima)
        return ids, maxima
