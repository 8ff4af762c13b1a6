"""RoPE as config.json files state it, in all spellings, to RopeParameters. Reads a mapping; computes no frequencies.

Spellings: `rope_parameters` (flat, or one entry per layer type), or `rope_scaling` beside `rope_theta`; the kind under
`rope_type` or `type`; Gemma's second base as `rope_local_base_freq`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.graph.rope import RopeParameters, yarn_attention_factor

FULL = "full_attention"
SLIDING = "sliding_attention"


def rope_by_layer_type(keys: Mapping[str, Any], layer_types: tuple[str, ...]) -> dict[str, RopeParameters]:
    """The parameters of each of `layer_types`. Raises UnsupportedModel naming a RoPE type that is not implemented."""
    return {layer_type: _parameters(keys, _stated(keys, layer_type)) for layer_type in layer_types}


def context_length(keys: Mapping[str, Any]) -> int:
    """Positions the model can use: the original length times the factor where scaling extends it, as vLLM counts."""
    given = keys["max_position_embeddings"]
    rope = _parameters(keys, _stated(keys, FULL))
    extends = rope.rope_type in ("linear", "dynamic", "yarn")
    if not extends or keys["model_type"] == "gemma3_text":  # Gemma states the extended length already
        return int(given)
    return int(rope.original_context * rope.factor)


def _stated(keys: Mapping[str, Any], layer_type: str) -> dict[str, Any]:
    """One flat mapping for the layer type, `rope_theta` included."""
    parameters = keys.get("rope_parameters")
    if parameters and any(isinstance(value, Mapping) for value in parameters.values()):
        parameters = parameters.get(layer_type)
        if parameters is None:
            raise BadModelFile(f"config: rope_parameters has no entry for {layer_type} layers.")
        return {"rope_theta": keys["rope_theta"], **parameters}
    if layer_type == SLIDING and "rope_local_base_freq" in keys:
        return {"rope_theta": keys["rope_local_base_freq"]}  # scaling is for the global layers only
    return {"rope_theta": keys["rope_theta"], **(parameters or keys.get("rope_scaling") or {})}


def _parameters(keys: Mapping[str, Any], stated: Mapping[str, Any]) -> RopeParameters:
    kind = stated.get("rope_type") or stated.get("type") or "default"
    theta = _number(stated, "rope_theta")
    partial = stated.get("partial_rotary_factor", keys.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModel(f"RoPE over a part of each head (partial_rotary_factor {partial}) is not supported.")
    if kind == "default":
        return RopeParameters(theta=theta)
    original = stated.get("original_max_position_embeddings") or keys.get("original_max_position_embeddings")
    original_context = int(original or keys["max_position_embeddings"])
    factor = _number(stated, "factor")
    match kind:
        case "linear" | "dynamic":
            return RopeParameters(theta=theta, rope_type=kind, factor=factor, original_context=original_context)
        case "llama3":
            return RopeParameters(
                theta=theta,
                rope_type="llama3",
                factor=factor,
                original_context=original_context,
                low_freq_factor=_number(stated, "low_freq_factor"),
                high_freq_factor=_number(stated, "high_freq_factor"),
            )
        case "yarn":
            return _yarn(stated, theta, factor, original_context)
        case _:
            raise UnsupportedModel(
                f"RoPE type {kind!r} is not supported. Supported: default, linear, dynamic, llama3, yarn."
            )


def _yarn(stated: Mapping[str, Any], theta: float, factor: float, original_context: int) -> RopeParameters:
    magnitude = stated.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_attention_factor(factor, stated.get("mscale"), stated.get("mscale_all_dim"))
    return RopeParameters(
        theta=theta,
        rope_type="yarn",
        factor=factor,
        original_context=original_context,
        attention_factor=float(magnitude),
        beta_fast=float(stated.get("beta_fast") or 32.0),
        beta_slow=float(stated.get("beta_slow") or 1.0),
        truncate=bool(stated.get("truncate", True)),
    )


def _number(stated: Mapping[str, Any], name: str) -> float:
    value = stated.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise BadModelFile(f"config: RoPE's {name} is {value!r}, expected a positive number.")
    return float(value)
