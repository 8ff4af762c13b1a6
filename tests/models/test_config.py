"""ModelConfig.from_hf: what each architecture's config.json means, and what is refused."""

from __future__ import annotations

import pytest

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.models import ModelConfig, build_graph
from sojourn.models.config import FULL, SLIDING
from tests.models.micro import CASES

LLAMA = CASES["llama"]["config"]


def without(config, *keys, **changes):
    return {key: value for key, value in {**config, **changes}.items() if key not in keys}


def test_unknown_architecture_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama"):
        ModelConfig.from_hf({**LLAMA, "model_type": "mamba"})


def test_absent_architecture_is_refused():
    with pytest.raises(UnsupportedModel, match="none given"):
        ModelConfig.from_hf(without(LLAMA, "model_type"))


def test_unknown_activation_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'relu'"):
        ModelConfig.from_hf({**LLAMA, "hidden_act": "relu"})


def test_partial_rotation_is_refused():
    with pytest.raises(UnsupportedModel, match="partial_rotary_factor"):
        ModelConfig.from_hf({**LLAMA, "partial_rotary_factor": 0.5})


def test_bidirectional_attention_is_refused():
    with pytest.raises(UnsupportedModel, match="bidirectional"):
        ModelConfig.from_hf({**CASES["gemma3"]["config"], "use_bidirectional_attention": True})


@pytest.mark.parametrize("value", [None, 0, -1, "64", 6.5, True])
def test_a_senseless_number_names_its_key(value):
    with pytest.raises(BadModelFile, match="hidden_size"):
        ModelConfig.from_hf({**LLAMA, "hidden_size": value})


def test_heads_that_cannot_share_kv_heads_are_refused():
    with pytest.raises(BadModelFile, match="3 KV heads"):
        ModelConfig.from_hf({**LLAMA, "num_key_value_heads": 3})


def test_layer_types_must_name_every_layer():
    with pytest.raises(BadModelFile, match="layer_types"):
        ModelConfig.from_hf({**CASES["gemma3"]["config"], "layer_types": [FULL]})


def test_unknown_layer_type_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        ModelConfig.from_hf({**LLAMA, "layer_types": ["linear_attention", FULL]})


def test_head_dim_and_kv_heads_follow_from_the_heads_when_absent():
    config = ModelConfig.from_hf(without(LLAMA, "head_dim", "num_key_value_heads"))
    assert (config.head_dim, config.num_kv_heads) == (16, 4)


def test_text_part_of_a_multimodal_config_is_what_counts():
    text = without(CASES["gemma3"]["config"], "tie_word_embeddings")
    config = ModelConfig.from_hf({"model_type": "gemma3", "text_config": text, "hidden_size": 1})
    assert (config.architecture, config.hidden_size, config.tie_word_embeddings) == ("gemma3_text", 64, True)


def test_sparse_gemma3_config_takes_the_class_defaults():
    """google/gemma-3-4b states six keys; the rest is what the first release of its class had."""
    stated = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = ModelConfig.from_hf(stated)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert config.layer_types[:7] == (SLIDING,) * 5 + (FULL, SLIDING)
    assert (config.window(0), config.window(5)) == (1024, None)
    assert (config.rope[FULL].theta, config.rope[FULL].factor) == (1e6, 8.0)
    assert (config.rope[SLIDING].theta, config.rope[SLIDING].rope_type) == (1e4, "default")
    assert config.max_position_embeddings == 131072  # stated after scaling
    assert config.attention_scale == 256**-0.5


@pytest.mark.parametrize(
    ("case", "changes", "windows"),
    [
        ("llama", {"sliding_window": 16}, [None, None]),
        ("mistral", {"sliding_window": 16}, [16, 16]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, [None, None]),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, [None, 16]),
        ("qwen3_moe", {"sliding_window": 16, "use_sliding_window": True}, [16, 16]),
    ],
)
def test_which_layers_slide_without_layer_types(case, changes, windows):
    config = ModelConfig.from_hf(without({**CASES[case]["config"], **changes}, "layer_types"))
    assert [config.window(layer) for layer in range(2)] == windows


def test_dense_layers_among_mixtures():
    stated = {**CASES["qwen3_moe"]["config"], "mlp_only_layers": [0]}
    graph = build_graph(ModelConfig.from_hf(stated))
    names = {weight.name for weight in graph.weights}
    assert "model.layers.0.mlp.up_proj.weight" in names
    assert "model.layers.1.mlp.experts.up_proj.weight" in names
    assert "model.layers.0.mlp.experts.up_proj.weight" not in names


def test_more_experts_chosen_than_there_are_is_an_error():
    with pytest.raises(BadModelFile, match="num_experts_per_tok is 9"):
        ModelConfig.from_hf({**CASES["qwen3_moe"]["config"], "num_experts_per_tok": 9})


@pytest.mark.parametrize("case", ["llama", "qwen3"])
def test_attention_bias_asks_for_bias_tensors(case):
    graph = build_graph(ModelConfig.from_hf({**CASES[case]["config"], "attention_bias": True}))
    biases = [w.name for w in graph.weights if w.name.endswith("bias") and ".0." in w.name]
    assert biases == [f"model.layers.0.self_attn.{name}_proj.bias" for name in "qkvo"]


def test_qwen2_always_has_biases_on_q_k_v_only():
    graph = build_graph(ModelConfig.from_hf(CASES["qwen2"]["config"]))
    biases = [w.name for w in graph.weights if w.name.endswith("bias") and ".0." in w.name]
    assert biases == [f"model.layers.0.self_attn.{name}_proj.bias" for name in "qkv"]
