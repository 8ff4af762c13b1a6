"""A model ready to be executed: its checkpoint, its numbers, its graph bound to the weights. Immutable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sojourn.executor.native_backend import NativeBackend
from sojourn.graph import Graph
from sojourn.graph.key_centers import key_centers
from sojourn.graph.kv_storage import CodedKVStorage, KVStorage
from sojourn.graph.reference import ReferenceExecutor
from sojourn.models import ModelConfig, build_graph
from sojourn.weights.checkpoint import Checkpoint, open_checkpoint

logger = logging.getLogger(__name__)

OnWeight = Callable[[int, int], None]  # weights loaded so far, of how many


@dataclass(frozen=True)
class Model:
    """`Model.from_pretrained(path_or_name)` opens one; weights are read when a backend is made."""

    checkpoint: Checkpoint
    config: ModelConfig
    graph: Graph

    @classmethod
    def from_pretrained(cls, path_or_name: str) -> Self:
        """A GGUF file, a Hugging Face directory, a short name or a hub repository.

        Raises ModelNotFound, BadModelFile (weights missing or of the wrong shape, by name) or UnsupportedModel.
        """
        # Here: it brings HTTP and TLS, which the engine process, given a path, should not keep in memory.
        from sojourn.weights.fetch import resolve

        return cls.from_path(resolve(path_or_name))

    @classmethod
    def from_path(cls, path: Path) -> Self:
        """`from_pretrained` of a file or directory that is there."""
        checkpoint = open_checkpoint(path)
        config = ModelConfig.from_hf(checkpoint.config)
        shapes = {name: checkpoint.shape(name) for name in checkpoint.tensors}
        graph = build_graph(config).bind(shapes)
        unexpected = graph.unexpected(shapes)
        if unexpected:
            logger.warning("%d tensor(s) of the file are not used: %s", len(unexpected), ", ".join(unexpected[:8]))
        return cls(checkpoint, config, graph)

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """K and V of one token over all layers."""
        return sum(layer.token_bytes(kv_dtype) for layer in self.graph.layers)

    def native_backend(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_rows: int,
        threads: int = 1,
        kv_dtype: str = "f16",
        on_weight: OnWeight | None = None,
    ) -> NativeBackend:
        """The C++ executor on the weights as they are stored, repacked; without blocks, `allocate_kv` must follow.

        `max_rows` is the most tokens of a step.
        """
        return NativeBackend(
            self.graph,
            self.checkpoint,
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=max_rows,
            threads=threads,
            kv_dtype=kv_dtype,
            on_weight=on_weight,
        )

    def reference_backend(
        self,
        num_blocks: int,
        block_size: int,
        *,
        threads: int = 1,
        kv_dtype: str = "f32",
        on_weight: OnWeight | None = None,
    ) -> ReferenceExecutor:
        """The NumPy executor, with all weights dequantized to float32 once."""
        total, loaded = len(self.graph.weights), 0
        kv: KVStorage
        if kv_dtype == "int8":
            centers = key_centers(self.graph, lambda name: self.checkpoint.tensors[name].float32())
            kv = CodedKVStorage(self.graph.layers, num_blocks, block_size, centers)
        else:
            kv = KVStorage(self.graph.layers, num_blocks, block_size)

        def load(name: str) -> NDArray[np.float32]:
            nonlocal loaded
            weight = self.checkpoint.tensors[name].float32(threads=threads)
            loaded += 1
            if on_weight is not None:
                on_weight(loaded, total)
            return weight

        return ReferenceExecutor(self.graph, load, kv)
