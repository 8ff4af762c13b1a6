"""64 greedy tokens of 32 prompts equal transformers in float32 on the dequantized weights (goldens: tests/data/parity).

A difference is accepted where the reference itself was undecided: its best two logits closer than NEAR_TIE at that
step. From there on the two texts are different inputs, so the rest of the prompt is not compared. Each is printed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sojourn.graph.kv_storage import KVStorage
from sojourn.graph.reference import ReferenceExecutor
from sojourn.models import ModelConfig, build_graph
from sojourn.weights.checkpoint import open_checkpoint
from sojourn.weights.fetch import resolve
from tests.graph.plans import greedy

GOLDENS = Path(__file__).parents[1] / "data" / "parity"
NEAR_TIE = 1e-3
BLOCK_SIZE = 32
BUDGET = 256


def check(name: str) -> None:
    golden = json.loads((GOLDENS / f"{name}.json").read_text())
    prompts = golden["prompts"]
    assert len(prompts) == 32
    longest = max(len(record["prompt"]) for record in prompts) + 64
    executor = load(golden["model"], num_blocks=len(prompts) * -(-longest // BLOCK_SIZE))
    outputs = greedy(executor, [record["prompt"] for record in prompts], 64, budget=BUDGET)
    wrong = []
    for number, (record, output) in enumerate(zip(prompts, outputs.tolist(), strict=True)):
        step = next((i for i in range(64) if output[i] != record["output"][i]), None)
        if step is None:
            continue
        gap = record["gaps"][step]
        line = f"{name} prompt {number} ({record['kind']}) differs first at token {step}, reference gap {gap}"
        print(line)
        if gap >= NEAR_TIE:
            wrong.append(line)
    assert not wrong, "\n".join(wrong)


def load(model: str, num_blocks: int) -> ReferenceExecutor:
    checkpoint = open_checkpoint(resolve(model))
    shapes = {name: checkpoint.shape(name) for name in checkpoint.tensors}
    graph = build_graph(ModelConfig.from_hf(checkpoint.config)).bind(shapes)
    storage = KVStorage(graph.layers, num_blocks, BLOCK_SIZE)
    return ReferenceExecutor(graph, lambda name: checkpoint.tensors[name].float32(), storage)


def test_smollm2_greedy_tokens_equal_transformers():
    check("smollm2")


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder", "gemma3"])
def test_other_models_greedy_tokens_equal_transformers(name):
    check(name)
