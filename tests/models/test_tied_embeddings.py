"""B79: a model without an output matrix, one with both, and files whose tensors do not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sojourn.errors import BadModelFile
from sojourn.models import ModelConfig, build_graph
from sojourn.weights.checkpoint import open_checkpoint
from tests.graph.plans import run_whole
from tests.models.micro import CASES, golden, load, write_directory
from tests.models.micro_gguf import write_gguf


def logits(path):
    return run_whole(load(path), golden("llama")["prompt"])


def assert_matches(path, case):
    expected = golden(case)
    assert np.abs(logits(path)[expected["positions"]] - expected["logits"]).max() < 1e-4


def rewrite(directory, change):
    """Applies `change` to the dict of the directory's tensors and stores them again, in float32."""
    checkpoint = open_checkpoint(directory)
    tensors = {name: checkpoint.tensors[name].float32() for name in checkpoint.tensors}
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_b79_tie_flag_wins_over_a_stored_head(tmp_path):
    directory = write_directory("llama-tied", tmp_path)  # its file holds lm_head.weight too
    assert_matches(directory, "llama-tied")


def test_b79_explicit_head_is_used_unless_tied(tmp_path):
    assert_matches(write_directory("llama", tmp_path), "llama")


def test_b79_absent_head_means_tied_whatever_the_flag_says(tmp_path):
    directory = rewrite(write_directory("llama", tmp_path), lambda tensors: tensors.pop("lm_head.weight"))
    assert json.loads((directory / "config.json").read_text())["tie_word_embeddings"] is False
    assert_matches(directory, "llama-tied")


@pytest.mark.parametrize(("head", "case"), [(True, "llama"), (False, "llama-tied")])
def test_b79_gguf_with_and_without_output_matrix(tmp_path, head, case):
    assert_matches(write_gguf(write_directory("llama", tmp_path / "hf"), tmp_path / "micro.gguf", head=head), case)


def test_b79_missing_tensors_are_listed_by_name(tmp_path):
    def drop(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]

    with pytest.raises(BadModelFile, match=r"2 missing.*model\.layers\.1\.mlp\.up_proj\.weight.*model\.norm\.weight"):
        load(rewrite(write_directory("llama", tmp_path), drop))


def test_b79_wrong_shape_names_both_shapes(tmp_path):
    def cut(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:63].copy()

    with pytest.raises(BadModelFile, match=r"model\.norm\.weight has shape \[63\], expected \[64\]"):
        load(rewrite(write_directory("llama", tmp_path), cut))


def test_b79_unexpected_tensors_are_named_and_harmless(tmp_path):
    def add(tensors):
        tensors["model.layers.0.self_attn.extra.weight"] = np.ones(3, np.float32)

    directory = rewrite(write_directory("llama", tmp_path), add)
    shapes = {name: array.shape for name, array in load_file(directory / "model.safetensors").items()}
    graph = build_graph(ModelConfig.from_hf(CASES["llama"]["config"])).bind(shapes)
    assert graph.unexpected(shapes) == ["model.layers.0.self_attn.extra.weight"]
    assert_matches(directory, "llama")
