"""The numbers of a model, normalised from Hugging Face's config.json keys. Knows no file format and no tensor.

Keys that a config.json leaves out take the architecture's own defaults, as that file's writer assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.graph.ops import Activation
from sojourn.graph.rope import RopeParameters
from sojourn.models.rope_config import FULL, SLIDING, context_length, rope_by_layer_type

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

_COMMON: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
}
_QWEN: dict[str, Any] = {
    **_COMMON,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "use_sliding_window": False,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "mistral": {**_COMMON, "max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
    "qwen2": {**_QWEN, "attention_bias": True},
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_moe": {
        **_QWEN,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    },
    # Published Gemma 3 files state only what differs from the class defaults of their first release.
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[bool, ...]  # by layer; the others have a dense feed-forward


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Names follow Hugging Face where it has one. Construct with `from_hf`."""

    architecture: str  # model_type
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: Activation
    max_position_embeddings: int  # positions the model can use, RoPE scaling included
    tie_word_embeddings: bool
    attention_scale: float
    attention_bias: bool  # on q, k, v
    attention_output_bias: bool
    mlp_bias: bool
    sliding_window: int | None  # None where no layer slides
    layer_types: tuple[str, ...]  # FULL or SLIDING by layer
    rope: Mapping[str, RopeParameters]  # by layer type
    attention_softcap: float | None
    final_softcap: float | None
    moe: MoeConfig | None

    def window(self, layer: int) -> int | None:
        """Positions that a token of this layer sees, itself included; None for all."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """From the keys of a config.json, text part only.

        Raises UnsupportedModel naming an architecture, activation or RoPE type that is not implemented; BadModelFile
        for a key that is missing or makes no sense.
        """
        keys = _with_defaults(config)
        architecture = keys["model_type"]
        heads = _positive(keys, "num_attention_heads")
        kv_heads = _positive(keys, "num_key_value_heads") if keys.get("num_key_value_heads") is not None else heads
        hidden = _positive(keys, "hidden_size")
        head_dim = _positive(keys, "head_dim") if keys.get("head_dim") is not None else hidden // heads
        layer_types = _layer_types(keys, _positive(keys, "num_hidden_layers"))
        if heads % kv_heads or head_dim % 2:
            raise BadModelFile(f"config: {heads} heads cannot share {kv_heads} KV heads of {head_dim} dimensions.")
        return cls(
            architecture=architecture,
            vocab_size=_positive(keys, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_positive(keys, "intermediate_size"),
            num_layers=len(layer_types),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(keys["rms_norm_eps"]),
            activation=_activation(keys),
            max_position_embeddings=context_length(keys),
            tie_word_embeddings=bool(keys.get("tie_word_embeddings", False)),
            attention_scale=float(keys.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            attention_bias=bool(keys.get("attention_bias", False)),
            attention_output_bias=bool(keys.get("attention_bias", False)) and architecture != "qwen2",
            mlp_bias=bool(keys.get("mlp_bias", False)),
            sliding_window=_positive(keys, "sliding_window") if SLIDING in layer_types else None,
            layer_types=layer_types,
            rope=rope_by_layer_type(keys, tuple(dict.fromkeys(layer_types))),
            attention_softcap=keys.get("attn_logit_softcapping"),
            final_softcap=keys.get("final_logit_softcapping"),
            moe=_moe(keys, len(layer_types)) if architecture == "qwen3_moe" else None,
        )


def _with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, Mapping) else dict(config)
    architecture = str(merged.get("model_type", "none given"))
    if architecture == "gemma3":
        architecture = "gemma3_text"
    if architecture not in DEFAULTS:
        known = ", ".join(sorted(DEFAULTS))
        raise UnsupportedModel(f"Model architecture {architecture!r} is not supported. Supported: {known}.")
    if merged.get("quantization_config") is not None:
        method = merged["quantization_config"].get("quant_method", "unnamed")
        raise UnsupportedModel(
            f"Checkpoints quantized with {method!r} are not supported; use a GGUF file or an unquantized one."
        )
    if merged.get("use_bidirectional_attention"):
        raise UnsupportedModel("Models with bidirectional attention are not supported.")
    return {**DEFAULTS[architecture], **merged, "model_type": architecture}


def _positive(keys: Mapping[str, Any], name: str) -> int:
    value = keys.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        found = "is missing" if value is None else f"is {value!r}"
        raise BadModelFile(f"config: {name} {found}, expected a positive whole number.")
    return value


def _activation(keys: Mapping[str, Any]) -> Activation:
    name = keys.get("hidden_activation") or keys.get("hidden_act")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"Activation {name!r} is not supported. Supported: {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]


def _layer_types(keys: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    given = keys.get("layer_types")
    if given is not None:
        unknown = sorted(set(given) - {FULL, SLIDING})
        if unknown:
            raise UnsupportedModel(f"Layer type {unknown[0]!r} is not supported. Supported: {FULL}, {SLIDING}.")
        if len(given) != num_layers:
            raise BadModelFile(f"config: layer_types names {len(given)} layers, num_hidden_layers is {num_layers}.")
        return tuple(given)
    slides = _sliding_rule(keys)
    return tuple(SLIDING if slides(layer) else FULL for layer in range(num_layers))


def _sliding_rule(keys: Mapping[str, Any]) -> Callable[[int], bool]:
    """Which layers slide, for configurations older than the key `layer_types`."""
    if keys.get("sliding_window") is None:
        return lambda layer: False
    match keys["model_type"]:
        case "gemma3_text":
            pattern = keys.get("_sliding_window_pattern") or keys["sliding_window_pattern"]
            return lambda layer: (layer + 1) % pattern != 0
        case "mistral":
            return lambda layer: True
        case "qwen3_moe":
            return lambda layer: bool(keys["use_sliding_window"])
        case "qwen2" | "qwen3":
            return lambda layer: bool(keys["use_sliding_window"]) and layer >= keys["max_window_layers"]
        case _:
            return lambda layer: False


def _moe(keys: Mapping[str, Any], num_layers: int) -> MoeConfig:
    dense = set(keys.get("mlp_only_layers") or ())
    step = _positive(keys, "decoder_sparse_step")
    # transformers 5 writes the count under the second name.
    num_experts = _positive(keys, "num_local_experts" if "num_local_experts" in keys else "num_experts")
    chosen = _positive(keys, "num_experts_per_tok")
    if chosen > num_experts:
        raise BadModelFile(f"config: num_experts_per_tok is {chosen}, but there are {num_experts} experts.")
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_tok=chosen,
        intermediate_size=_positive(keys, "moe_intermediate_size"),
        norm_topk_prob=bool(keys["norm_topk_prob"]),
        sparse_layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)),
    )
