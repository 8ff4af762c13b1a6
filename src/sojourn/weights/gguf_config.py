"""GGUF metadata to the keys of a Hugging Face config.json. Reads metadata and tensor shapes, never tensor data.

One function per architecture family adds what the family has beside the common keys. Numbers that GGUF leaves to the
engine (Gemma's pattern of local layers, for instance) are filled in as llama.cpp does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.errors import BadModelFile, UnsupportedModel
from sojourn.weights.gguf_metadata import GGUFMetadata, ValueType
from sojourn.weights.gguf_reader import TensorInfo

# Numbers that some models have per layer and most write once.
_LAYER_NUMBERS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_MAX_LAYERS = 4096
_GEMMA3_LOCAL_LAYERS_PER_GLOBAL = 5
_GEMMA3_27B_LAYERS = 62


class MetadataReader:
    """Typed look-ups of `{architecture}.{key}`. Holds no state but what it was given."""

    def __init__(self, path: Path, metadata: GGUFMetadata) -> None:
        architecture = metadata.text("general.architecture")
        if architecture is None:
            raise BadModelFile(f"{path}: general.architecture is missing; this file holds no language model")
        self.path = path
        self.metadata = metadata
        self.architecture = architecture

    def integer(self, key: str) -> int | None:
        full = f"{self.architecture}.{key}"
        stored = self.metadata.stored_array(full)
        if stored is None or stored.kind not in _LAYER_NUMBERS or not 0 < stored.count <= _MAX_LAYERS:
            return self.metadata.integer(full)
        values: set[int] = set(self.metadata[full])
        if len(values) > 1:
            raise UnsupportedModel(f"{self.path}: {full} differs from layer to layer, which is not supported")
        return values.pop()

    def layer_flags(self, key: str, layers: int) -> list[bool] | None:
        """A bool for each of `layers` layers, where the file has them in this form."""
        full = f"{self.architecture}.{key}"
        stored = self.metadata.stored_array(full)
        if stored is None or stored.kind is not ValueType.BOOL:
            return None
        if stored.count < layers:
            raise BadModelFile(f"{self.path}: {full} has {stored.count} entries for {layers} layers")
        return list(self.metadata[full][:layers])

    def required(self, key: str) -> int:
        """A positive integer. BadModelFile: absent or not positive."""
        value = self.integer(key)
        if value is None:
            raise BadModelFile(f"{self.path}: the metadata key {self.architecture}.{key} is missing")
        if value < 1:
            raise BadModelFile(f"{self.path}: {self.architecture}.{key} is {value}; the file is damaged")
        return value

    def real(self, key: str) -> float | None:
        return self.metadata.real(f"{self.architecture}.{key}")

    def flag(self, key: str) -> bool | None:
        return self.metadata.flag(f"{self.architecture}.{key}")

    def text(self, key: str) -> str | None:
        return self.metadata.text(f"{self.architecture}.{key}")


def translate_config(path: Path, metadata: GGUFMetadata, tensors: dict[str, TensorInfo]) -> dict[str, Any]:
    """The config of a model with these GGUF `tensors`.

    UnsupportedModel: an architecture or a RoPE scaling that is not implemented. BadModelFile: a key missing or wrong.
    """
    reader = MetadataReader(path, metadata)
    family = _FAMILIES.get(reader.architecture)
    if family is None:
        raise UnsupportedModel(
            f"{path}: the architecture {reader.architecture[:60]!r} is not supported; these are: {', '.join(_FAMILIES)}"
        )
    if reader.flag("attention.causal") is False:
        raise UnsupportedModel(f"{path}: this is an embedding model; only models that generate text are supported")
    config = _common(reader, tensors)
    config.update(_rope(reader, config["head_dim"]))
    config.update(family(reader, config))
    return {key: value for key, value in config.items() if value is not None}


def _common(reader: MetadataReader, tensors: dict[str, TensorInfo]) -> dict[str, Any]:
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadModelFile(f"{reader.path}: the token embedding token_embd.weight is missing or has a wrong shape")
    hidden_size, heads = reader.required("embedding_length"), reader.required("attention.head_count")
    head_dim = reader.integer("attention.key_length") or hidden_size // heads
    value_dim = reader.integer("attention.value_length") or head_dim
    if value_dim != head_dim:
        raise UnsupportedModel(f"{reader.path}: keys of {head_dim} and values of {value_dim} numbers are not supported")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": reader.integer("feed_forward_length"),
        "num_hidden_layers": reader.required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": reader.real("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": reader.required("context_length"),
        "sliding_window": reader.integer("attention.sliding_window") or None,
        "attn_logit_softcapping": reader.real("attn_logit_softcapping") or None,
        "final_logit_softcapping": reader.real("final_logit_softcapping") or None,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": reader.metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": reader.metadata.integer("tokenizer.ggml.eos_token_id"),
    }


def _rope(reader: MetadataReader, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling is no metadata: the converter computes it into the tensor rope_freqs.weight."""
    rotated = reader.integer("rope.dimension_count") or head_dim
    return {
        "rope_theta": reader.real("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(reader),
        "partial_rotary_factor": rotated / head_dim if rotated != head_dim else None,
    }


def _rope_scaling(reader: MetadataReader) -> dict[str, Any] | None:
    kind = reader.text("rope.scaling.type")
    factor = reader.real("rope.scaling.factor") or reader.real("rope.scale_linear") or 1.0  # the older key
    if kind == "none" or factor == 1.0:
        return None
    original = reader.integer("rope.scaling.original_context_length")
    if kind in (None, "linear"):
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModel(f"{reader.path}: the RoPE scaling {kind[:60]!r} is not supported; linear and yarn are")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": reader.real("rope.scaling.yarn_beta_fast"),
        "beta_slow": reader.real("rope.scaling.yarn_beta_slow"),
    }
    return {key: value for key, value in scaling.items() if value is not None}


def _llama(reader: MetadataReader, config: dict[str, Any]) -> dict[str, Any]:
    _refuse_experts(reader)
    # Mistral files say llama; where it matters they have a window, which Llama never has.
    return {"model_type": "mistral" if config["sliding_window"] else "llama"}


def _qwen2(reader: MetadataReader, config: dict[str, Any]) -> dict[str, Any]:
    _refuse_experts(reader)
    return {"model_type": "qwen2", "use_sliding_window": False}


def _qwen3(reader: MetadataReader, config: dict[str, Any]) -> dict[str, Any]:
    _refuse_experts(reader)
    return {"model_type": "qwen3", "use_sliding_window": False}


def _qwen3_moe(reader: MetadataReader, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "use_sliding_window": False,
        "intermediate_size": config["intermediate_size"] or reader.required("expert_feed_forward_length"),
        "moe_intermediate_size": reader.required("expert_feed_forward_length"),
        "num_experts": reader.required("expert_count"),
        "num_experts_per_tok": reader.required("expert_used_count"),
        "norm_topk_prob": reader.flag("expert_weights_norm") is not False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma3(reader: MetadataReader, config: dict[str, Any]) -> dict[str, Any]:
    _refuse_experts(reader)
    layers, pattern = config["num_hidden_layers"], "attention.sliding_window_pattern"
    local = reader.layer_flags(pattern, layers)
    if local is None:
        period = reader.integer(pattern) or _GEMMA3_LOCAL_LAYERS_PER_GLOBAL + 1
        local = [bool((layer + 1) % period) for layer in range(layers)]
    # The largest model divides scores by the root of hidden_size / heads, the others by that of head_dim.
    scalar = (
        config["hidden_size"] // config["num_attention_heads"] if layers == _GEMMA3_27B_LAYERS else config["head_dim"]
    )
    return {
        "model_type": "gemma3_text",
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": reader.real("rope.freq_base_swa") or 10000.0,
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in local],
    }


def _refuse_experts(reader: MetadataReader) -> None:
    if reader.integer("expert_count"):
        raise UnsupportedModel(f"{reader.path}: {reader.architecture} with a mixture of experts is not supported")


_FAMILIES: dict[str, Callable[[MetadataReader, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma3": _gemma3,
}
