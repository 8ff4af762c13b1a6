"""Scratch buffers: how few a model needs, and that no value's buffer is overwritten before its last reader."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sojourn.executor.lowering import Lowering
from sojourn.executor.model import Model
from sojourn.graph.graph import inputs


class Recorder:
    """Stands in for the native executor: hands out ids and remembers the buffers' widths."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    def add_buffer(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: 0


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_pretrained("smollm2:135m")


def lowered(model: Model) -> tuple[Recorder, Lowering]:
    recorder = Recorder()
    lowering = Lowering(recorder, model.checkpoint, lambda loaded, total: None)  # type: ignore[arg-type]
    lowering.add_kv(model.graph, 1, 16, "f16")
    lowering.section(model.graph.body, model.graph.hidden)
    return recorder, lowering


def test_thirty_layers_share_the_buffers_of_one(model: Model) -> None:
    recorder, _ = lowered(model)
    layers = len(model.graph.layers)
    values = {value.index: value.width for op in model.graph.body for value in inputs(op)}
    assert layers == 30
    assert len(values) > 10 * layers
    # Residual, norm or attention, q; k and v; gate and up.
    assert len(recorder.widths) <= 8
    assert sum(recorder.widths) * 20 < sum(values.values())


def test_no_buffer_changes_hands_before_its_values_last_reader(model: Model) -> None:
    _, lowering = lowered(model)
    body = model.graph.body
    last_reader = {value.index: at for at, op in enumerate(body) for value in inputs(op)}
    writer = {op.out.index: at for at, op in enumerate(body)}
    owners: dict[int, list[int]] = {}
    for value, buffer in lowering._buffers.items():
        owners.setdefault(buffer, []).append(value)
    shared = 0
    for values in owners.values():
        ordered = sorted((value for value in values if value in writer), key=lambda value: writer[value])
        for earlier, later in pairwise(ordered):
            # An op may write where it has just read for the last time.
            assert last_reader.get(earlier, -1) <= writer[later], (earlier, later)
            shared += 1
    assert shared > 100
