"""B80: RoPE scaling in every spelling, from config and from GGUF; unknown kinds are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.graph.rope import inverse_frequencies
from sojourn.models import ModelConfig
from tests.graph.plans import greedy, run_whole
from tests.models.micro import CASES, golden, load, write_directory
from tests.models.micro_gguf import write_gguf

SCALINGS = ["linear", "dynamic", "llama3", "yarn"]


def legacy(case, key):
    """The case's config as transformers 4 wrote it: rope_theta beside rope_scaling, its kind under `key`."""
    config = dict(CASES[case]["config"])
    scaling = dict(config.pop("rope_parameters"))
    return {
        **config,
        "rope_theta": scaling.pop("rope_theta"),
        "rope_scaling": {**scaling, key: scaling.pop("rope_type")},
    }


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_b80_both_spellings_mean_the_same(kind, key):
    new = CASES[f"llama-{kind}"]["config"]
    assert ModelConfig.from_hf(legacy(f"llama-{kind}", key)) == ModelConfig.from_hf(new)


@pytest.mark.parametrize("kind", SCALINGS)
def test_b80_logits_match_the_reference_at_0_31_and_200(kind, tmp_path):
    """Original context 32, factor 8."""
    expected = golden(f"llama-{kind}")
    old = legacy(f"llama-{kind}", "type")
    directory = write_directory(
        f"llama-{kind}", tmp_path, rope_parameters=None, rope_theta=old["rope_theta"], rope_scaling=old["rope_scaling"]
    )
    logits = run_whole(load(directory), expected["prompt"])
    for position in (0, 31, 200):
        row = expected["positions"].tolist().index(position)
        assert np.abs(logits[position] - expected["logits"][row]).max() < 1e-4, position


@pytest.mark.parametrize("kind", ["longrope", "su", "mrope", "nonsense"])
def test_b80_unknown_kind_is_refused_by_name(kind):
    config = {**CASES["llama"]["config"], "rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}}
    with pytest.raises(UnsupportedModel, match=kind):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize("parameters", [{"rope_type": "linear"}, {"rope_type": "yarn", "factor": "8"}])
def test_b80_missing_factor_is_an_error(parameters):
    with pytest.raises(BadModelFile, match="factor"):
        ModelConfig.from_hf({**CASES["llama"]["config"], "rope_parameters": parameters})


def test_b80_gguf_factor_tensor_is_llama3_scaling(tmp_path):
    """llama.cpp's converter turns llama3 scaling into divisors of the frequencies."""
    scaled = ModelConfig.from_hf(CASES["llama-llama3"]["config"])
    plain = ModelConfig.from_hf(CASES["llama"]["config"])
    before, after = (inverse_frequencies(c.rope["full_attention"], c.head_dim) for c in (plain, scaled))
    assert not np.allclose(before, after)
    hf = write_directory("llama", tmp_path / "hf")
    file = write_gguf(hf, tmp_path / "micro.gguf", rope_factors=before / after)
    expected = golden("llama-llama3")
    logits = run_whole(load(file), expected["prompt"])
    assert np.abs(logits[expected["positions"]] - expected["logits"]).max() < 1e-4


def test_b80_dynamic_output_does_not_depend_on_chunking(tmp_path):
    executor = load(write_directory("llama-dynamic", tmp_path))
    prompt = golden("llama-dynamic")["prompt"]
    whole, short = (greedy(executor, [prompt[:200]], 16, budget=budget) for budget in (256, 24))
    assert whole.tolist() == short.tolist()


def test_context_length_counts_scaling_once():
    lengths = {kind: ModelConfig.from_hf(CASES[f"llama-{kind}"]["config"]).max_position_embeddings for kind in SCALINGS}
    assert lengths == {"linear": 256, "dynamic": 256, "llama3": 256, "yarn": 256}


def test_yarn_attention_factor_follows_mscale_when_both_scales_are_given():
    def stated(**more):
        parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, **more}
        return ModelConfig.from_hf({**CASES["llama"]["config"], "rope_parameters": parameters}).rope["full_attention"]

    assert stated().attention_factor == pytest.approx(0.1 * math.log(8) + 1)
    assert stated(attention_factor=1.5).attention_factor == 1.5
    both = stated(mscale=2.0, mscale_all_dim=1.0).attention_factor
    assert both == pytest.approx((0.2 * math.log(8) + 1) / (0.1 * math.log(8) + 1))
