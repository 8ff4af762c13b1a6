"""GGUF models as checkpoints: what the converter did to a Hugging Face model is undone, for every tensor and key."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.weights.checkpoint import Checkpoint, open_checkpoint
from sojourn.weights.fetch import resolve
from tests.weights.conversion import Arrays, add_value, metadata_of, write_gguf

DATA = Path(__file__).parent.parent / "data"
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<s>", "<|im_end|>", "a", "<|endoftext|>", "<end_of_turn>", "b", "c", "d"],
    "tokenizer.ggml.token_type": [3, 3, 1, 3, 1, 1, 1, 1],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}
BASE = {
    "block_count": 1,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    **VOCABULARY,
}


def micro(name: str, folder: Path) -> tuple[dict[str, Any], Checkpoint]:
    """A micro model of tests/data opened by way of `folder`, and the config of its case."""
    case = json.loads((DATA / "micro" / "cases.json").read_text())[name]
    (folder / "model.safetensors").symlink_to(DATA / "micro" / case["weights"] / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(case["config"]))
    return case["config"], open_checkpoint(folder)


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("llama", "llama"), ("qwen3", "qwen3"), ("qwen3_moe", "qwen3moe"), ("gemma3", "gemma3")],
)
def test_converted_model_has_the_same_tensors_and_numbers(case: str, architecture: str, tmp_path: Path) -> None:
    config, original = micro(case, tmp_path)
    tensors = {name: original.tensors[name].float32() for name in original.tensors}
    heads = (config["num_attention_heads"], config["num_key_value_heads"])
    path = write_gguf(tmp_path / "m.gguf", architecture, tensors, metadata_of(config, architecture), heads=heads)
    found = open_checkpoint(path)
    assert set(found.tensors) == set(original.tensors)
    for name, expected in tensors.items():
        array = found.tensors[name].float32()
        assert array.shape == found.shape(name) == expected.shape
        if architecture == "gemma3" and name.endswith("norm.weight"):
            assert np.abs(array - expected).max() <= 2.0**-23  # 1 + w is stored in float32
        else:
            assert np.array_equal(array, expected)
    assert found.num_parameters == original.num_parameters
    for key in ("model_type", "hidden_size", "num_hidden_layers", "head_dim", "rms_norm_eps", "vocab_size"):
        assert found.config[key] == config[key]
    for key in ("num_experts_per_tok", "moe_intermediate_size", "sliding_window"):
        assert found.config.get(key) == config.get(key)
    assert found.config.get("num_experts") == config.get("num_local_experts")
    assert found.config["tie_word_embeddings"] == config["tie_word_embeddings"]


def llama_tensors(**extra: np.ndarray) -> Arrays:
    rng = np.random.default_rng(1)
    shapes = {
        "model.embed_tokens.weight": (8, 64),
        "model.norm.weight": (64,),
        "model.layers.0.self_attn.q_proj.weight": (64, 64),
        "model.layers.0.self_attn.k_proj.weight": (32, 64),
        "model.layers.0.self_attn.v_proj.weight": (32, 64),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} | extra


def opened(
    tmp_path: Path, architecture: str = "llama", tensors: Arrays | None = None, format: str = "F32", **metadata: Any
) -> Checkpoint:
    keys = {key.replace("__", "."): content for key, content in metadata.items()}
    chosen = {key: content for key, content in {**BASE, **keys}.items() if content is not None}
    path = write_gguf(
        tmp_path / "model.gguf", architecture, tensors or llama_tensors(), chosen, heads=(4, 2), format=format
    )
    return open_checkpoint(path)


@pytest.mark.parametrize("format", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantized_rotary_rows_are_put_back_without_changing_a_code(format: str, tmp_path: Path) -> None:
    tensors = llama_tensors()
    checkpoint = opened(tmp_path, tensors=tensors, format=format)
    kind = gguf.GGMLQuantizationType[format]
    for name in ("q_proj", "k_proj", "v_proj"):
        full = f"model.layers.0.self_attn.{name}.weight"
        direct = gguf.quants.quantize(tensors[full], kind)
        found = checkpoint.tensors[full]
        assert found.format == format
        assert np.array_equal(found.data, direct.view(np.uint8).reshape(-1))


def test_rotary_biases_are_put_back(tmp_path: Path) -> None:
    biases = {
        f"model.layers.0.self_attn.{p}_proj.bias": np.arange(n, dtype=np.float32) for p, n in (("q", 64), ("k", 32))
    }
    checkpoint = opened(tmp_path, tensors=llama_tensors(**biases))
    for name, expected in biases.items():
        assert np.array_equal(checkpoint.tensors[name].float32(), expected)
    assert checkpoint.config["attention_bias"] is True


def test_qwen2_rows_are_left_alone(tmp_path: Path) -> None:
    tensors = llama_tensors()
    checkpoint = opened(tmp_path, "qwen2", tensors)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert np.array_equal(checkpoint.tensors[name].float32(), tensors[name])
    assert not checkpoint.tensors[name].data.flags.owndata


def test_b79_absent_head_means_tied_embeddings(tmp_path: Path) -> None:
    assert opened(tmp_path).config["tie_word_embeddings"] is True


def test_b79_stored_head_is_used(tmp_path: Path) -> None:
    head = np.full((8, 64), 0.5, np.float32)
    checkpoint = opened(tmp_path, tensors=llama_tensors(**{"lm_head.weight": head}))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert np.array_equal(checkpoint.tensors["lm_head.weight"].float32(), head)


def test_b79_absent_embedding_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["model.embed_tokens.weight"]
    with pytest.raises(BadModelFile, match=r"token_embd\.weight"):
        opened(tmp_path, tensors=tensors)


def test_b80_linear_and_yarn_scaling_come_from_metadata(tmp_path: Path) -> None:
    linear = opened(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert linear.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = opened(
        tmp_path, "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0,
        rope__scaling__original_context_length=32, rope__scaling__yarn_beta_fast=16.0,
    )  # fmt: skip
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0}
    assert yarn.config["rope_scaling"] == expected
    assert yarn.config["rope_theta"] == 10000.0


def test_b80_old_key_of_linear_scaling_is_read(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, rope__scale_linear=2.0)
    assert checkpoint.config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_b80_no_scaling_gives_none(tmp_path: Path) -> None:
    for scaling in ({}, {"rope__scaling__type": "none", "rope__scaling__factor": 2.0}):
        assert "rope_scaling" not in opened(tmp_path, **scaling).config


def test_b80_unknown_scaling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'longrope'"):
        opened(tmp_path, rope__scaling__type="longrope", rope__scaling__factor=2.0)


def test_b80_factor_tensor_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "factors.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, content in BASE.items():
        full = key if key.startswith("tokenizer.") else f"llama.{key}"
        add_value(writer, full, content)
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert np.array_equal(open_checkpoint(path).tensors["rope_freqs.weight"].float32(), factors)


def test_rotation_of_part_of_a_head_is_told(tmp_path: Path) -> None:
    assert opened(tmp_path, rope__dimension_count=8).config["partial_rotary_factor"] == 0.5
    assert "partial_rotary_factor" not in opened(tmp_path, rope__dimension_count=16).config


def test_head_dim_comes_from_key_length(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, "qwen3", attention__key_length=32, attention__value_length=32)
    assert checkpoint.config["head_dim"] == 32
    with pytest.raises(UnsupportedModel, match="keys of 32 and values of 16"):
        opened(tmp_path, "qwen3", attention__key_length=32, attention__value_length=16)


def test_a_window_makes_llama_mistral(tmp_path: Path) -> None:
    config = opened(tmp_path, attention__sliding_window=4096).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 4096)


def test_softcaps_are_passed_on(tmp_path: Path) -> None:
    config = opened(tmp_path, "gemma3", attn_logit_softcapping=50.0, final_logit_softcapping=30.0).config
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, "lllllgll"),
        (4, "lllglllg"),
        ([True, False] * 4, "lglglglg"),
    ],
    ids=["unstated", "period", "flags"],
)
def test_gemma_layer_pattern(pattern: int | list[bool] | None, expected: str, tmp_path: Path) -> None:
    config = opened(
        tmp_path, "gemma3", block_count=8, attention__sliding_window=64, attention__sliding_window_pattern=pattern
    ).config
    assert "".join(kind[0].replace("s", "l").replace("f", "g") for kind in config["layer_types"]) == expected
    assert config["rope_local_base_freq"] == 10000.0
    assert config["hidden_activation"] == "gelu_pytorch_tanh"


def test_numbers_per_layer_are_read_when_equal_and_refused_when_not(tmp_path: Path) -> None:
    assert opened(tmp_path, attention__head_count_kv=[2, 2]).config["num_key_value_heads"] == 2
    with pytest.raises(UnsupportedModel, match="layer to layer"):
        opened(tmp_path, attention__head_count_kv=[2, 4])


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama, qwen2, qwen3, qwen3moe, gemma3"):
        open_checkpoint(path)


def test_llama_with_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="mixture of experts"):
        opened(tmp_path, expert_count=8)


def test_unknown_tensors_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    path = tmp_path / "extra.gguf"
    write_gguf(path, "llama", llama_tensors(**extra), BASE, heads=(4, 2))
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q_norm.weight", b"blk.0.attn_q_what.weight"))
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(path)
    assert len(checkpoint.tensors) == 5
    assert "blk.0.attn_q_what.weight" in caplog.text


def test_dominant_format_is_that_of_the_body(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, format="Q4_0")
    assert checkpoint.quantization == "Q4_0"
    assert checkpoint.num_parameters == 8 * 64 + 64 + 64 * 64 + 2 * 32 * 64
    assert checkpoint.weight_bytes == (8 * 64 + 64 * 64 + 2 * 32 * 64) // 32 * 18 + 64 * 4


# The default model itself; `make test` has it in the cache.


@pytest.fixture(scope="module")
def smollm2() -> Checkpoint:
    return open_checkpoint(resolve("smollm2:135m"))


def test_default_model_opens_in_time() -> None:
    path = resolve("smollm2:135m")
    start = time.monotonic()
    open_checkpoint(path)
    assert time.monotonic() - start < 2


def test_default_model_is_described(smollm2: Checkpoint) -> None:
    assert smollm2.quantization == "Q4_1"
    assert smollm2.num_parameters == 134_515_008
    assert smollm2.config["rms_norm_eps"] == 1e-5
    assert smollm2.config["rope_theta"] == 100_000.0
    assert smollm2.metadata is not None
    assert len(smollm2.metadata["tokenizer.ggml.tokens"]) == smollm2.config["vocab_size"] == 49152


def check_goldens(name: str, checkpoint: Checkpoint) -> None:
    goldens = json.loads((DATA / "weights" / "tensor_hashes.json").read_text())[name]
    assert goldens
    for tensor, expected in goldens.items():
        array = checkpoint.tensors[tensor].float32()
        assert hashlib.sha256(array.astype("<f4").tobytes()).hexdigest() == expected, tensor


def test_default_model_equals_transformers(smollm2: Checkpoint) -> None:
    check_goldens("smollm2:135m", smollm2)


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder:0.5b", "gemma3:270m"])
def test_other_models_equal_transformers(name: str) -> None:
    check_goldens(name, open_checkpoint(resolve(name)))
