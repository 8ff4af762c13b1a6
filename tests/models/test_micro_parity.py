"""Every architecture and RoPE scaling against transformers: logits within 1e-4, greedy tokens equal (goldens)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.plans import greedy, run_whole
from tests.models.micro import CASES, golden, load, write_directory

TOLERANCE = 1e-4
GREEDY_PROMPT = 200


@pytest.mark.parametrize("case", sorted(CASES))
def test_logits_equal_transformers_beyond_the_window_and_the_original_context(case, tmp_path):
    expected = golden(case)
    logits = run_whole(load(write_directory(case, tmp_path)), expected["prompt"])
    assert np.abs(logits[expected["positions"]] - expected["logits"]).max() < TOLERANCE


# Dynamic NTK has no greedy golden: transformers changes its base with every token (see sojourn.graph.rope).
@pytest.mark.parametrize("case", sorted(set(CASES) - {"llama-dynamic"}))
@pytest.mark.parametrize("budget", [256, 37])
def test_greedy_tokens_equal_transformers(case, budget, tmp_path):
    expected = golden(case)
    tokens = greedy(load(write_directory(case, tmp_path)), [expected["prompt"][:GREEDY_PROMPT]], 24, budget=budget)
    assert tokens[0].tolist() == expected["greedy"].tolist()
