"""A weight as stored, and a model's weights with what describes them. Never knows which file format they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn import native
from sojourn.weights.mapped_file import MappedFile


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight as stored.

    name: the Hugging Face name, such as "model.layers.0.self_attn.q_proj.weight".
    shape: row-major; a linear weight is [out_features, in_features].
    format: a name of `formats.FORMATS`, such as "Q4_1".
    data: the bytes of all rows, one after another, without padding; a view of the mapped file where possible.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: NDArray[np.uint8]

    def float32(self, *, threads: int = 1) -> NDArray[np.float32]:
        """The weights dequantized by the native kernels: a new array of `shape`."""
        return native.dequantize(self.format, self.data, threads=threads).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is made when asked for, and its shape, which is known before."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]


class LazyTensors(Mapping[str, Tensor]):
    """Tensors made when asked for: some have to be copied (rows moved, experts stacked), and that copy is not kept."""

    def __init__(self, tensors: Mapping[str, LazyTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].make()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor without making it. KeyError: there is none of that name."""
        return self._tensors[name].shape


@dataclass(frozen=True, slots=True)
class Part:
    """Size of one stored tensor, for the totals."""

    name: str
    format: str
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """quantization: the format of most weights in the body; num_parameters and weight_bytes: of all that is stored."""

    quantization: str
    num_parameters: int
    weight_bytes: int

    @staticmethod
    def of(parts: Iterable[Part]) -> Totals:
        """Embeddings and the head do not count as body: they are often kept in a larger format."""
        body: Counter[str] = Counter()
        everything: Counter[str] = Counter()
        weight_bytes = 0
        for part in parts:
            everything[part.format] += part.elements
            weight_bytes += part.nbytes
            if ".layers." in part.name:
                body[part.format] += part.elements
        dominant = (body or everything).most_common(1)
        return Totals(dominant[0][0] if dominant else "F32", everything.total(), weight_bytes)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's weights and everything that describes them. Read-only.

    path: the file (the first shard) or directory that was opened.
    config: the keys of a Hugging Face config.json; for GGUF translated from its metadata.
    tensors: by canonical name; asking for one may copy it, so keep what you need and ask once.
    metadata: GGUF metadata as stored (tokenizer.ggml.*, tokenizer.chat_template ...); None for a directory.
    directory: where tokenizer.json and its companions are; None for GGUF.
    files: what the tensors are views of.
    """

    path: Path
    config: dict[str, Any]
    tensors: LazyTensors
    metadata: Mapping[str, Any] | None
    directory: Path | None
    totals: Totals
    files: tuple[MappedFile, ...]

    def release(self) -> None:
        """Let the weights read so far leave memory, once they have been copied or repacked."""
        for file in self.files:
            file.release()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it. KeyError: there is none of that name."""
        return self.tensors.shape(name)

    @property
    def quantization(self) -> str:
        return self.totals.quantization

    @property
    def num_parameters(self) -> int:
        return self.totals.num_parameters

    @property
    def weight_bytes(self) -> int:
        return self.totals.weight_bytes
