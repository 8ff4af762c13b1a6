"""How far a model's predictions are from the reference's, position by position. Pure arithmetic on logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
ROWS = 32  # at once: a row in float64 of a large vocabulary is 2 MB, and there are several


@dataclass
class Divergence:
    """Collects positions. `kl` is KL(reference || subject) in nats, the `nll` are of the text's own next token."""

    kl: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    reference_nll: list[float] = field(default_factory=list)
    agreed: int = 0  # positions where both find the same token likeliest

    def add(self, reference: Array, subject: Array, targets: NDArray[np.int64]) -> None:
        """Logits [T, vocab] of both, and the T tokens that follow."""
        for start in range(0, len(targets), ROWS):
            rows = slice(start, start + ROWS)
            self._add(log_softmax(reference[rows]), log_softmax(subject[rows]), targets[rows])

    def _add(self, reference: NDArray[np.float64], subject: NDArray[np.float64], targets: NDArray[np.int64]) -> None:
        rows = np.arange(len(targets))
        self.kl += (np.exp(reference) * (reference - subject)).sum(axis=1).tolist()
        self.nll += (-subject[rows, targets]).tolist()
        self.reference_nll += (-reference[rows, targets]).tolist()
        self.agreed += int((reference.argmax(axis=1) == subject.argmax(axis=1)).sum())

    @property
    def mean_kl(self) -> float:
        return float(np.mean(self.kl))

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self.nll)))

    @property
    def perplexity_ratio(self) -> float:
        """Of the subject to the reference: 1.0 is as good."""
        return float(np.exp(np.mean(self.nll) - np.mean(self.reference_nll)))


def log_softmax(logits: Array) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
