"""Hugging Face directories as checkpoints: written by the `safetensors` package, or by hand where wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sojourn.errors import BadModelFile, ModelNotFound, StartupError, UnsupportedModel
from sojourn.weights.checkpoint import open_checkpoint

CONFIG = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "eos_token_id": 2}
EMBEDDING = np.arange(32, dtype=np.float32).reshape(4, 8)


def model(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors or {"model.embed_tokens.weight": EMBEDDING}, folder / "model.safetensors")
    return folder


def raw_safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def test_single_file_is_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model(tmp_path))
    tensor = checkpoint.tensors["model.embed_tokens.weight"]
    assert (tensor.shape, tensor.format) == ((4, 8), "F32")
    assert np.array_equal(tensor.float32(), EMBEDDING)
    assert checkpoint.directory == tmp_path
    assert checkpoint.metadata is None
    assert (checkpoint.num_parameters, checkpoint.weight_bytes) == (32, 128)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    data = open_checkpoint(model(tmp_path)).tensors["model.embed_tokens.weight"].data
    assert not data.flags.owndata
    assert not data.flags.writeable


def test_bfloat16_and_half_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    header = {
        "model.layers.0.a.weight": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]},
        "model.layers.0.b.weight": {"dtype": "F16", "shape": [1], "data_offsets": [6, 8]},
        "__metadata__": {"format": "pt"},
    }
    data = struct.pack("<3He", 0x3F80, 0xC000, 0x7F80, 1.5)
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors(header, data))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors["model.layers.0.a.weight"].float32().tolist() == [1.0, -2.0, float("inf")]
    assert checkpoint.tensors["model.layers.0.b.weight"].float32().tolist() == [1.5]
    assert checkpoint.quantization == "BF16"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"model.embed_tokens.weight": EMBEDDING}, tmp_path / names[0])
    save_file({"model.norm.weight": np.ones(8, np.float32)}, tmp_path / names[1])
    where = {"model.embed_tokens.weight": names[0], "model.norm.weight": names[1]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return tmp_path


def test_shards_are_read(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert set(checkpoint.tensors) == {"model.embed_tokens.weight", "model.norm.weight"}
    assert checkpoint.tensors["model.norm.weight"].float32().sum() == 8


def test_b82_missing_safetensors_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"missing: model-00002-of-00002\.safetensors"):
        open_checkpoint(sharded)


def test_b82_index_that_disagrees_with_its_shard_is_named(sharded: Path) -> None:
    save_file({"model.other.weight": np.ones(8, np.float32)}, sharded / "model-00002-of-00002.safetensors")
    with pytest.raises(BadModelFile, match=r"model\.norm\.weight' is in model-00002"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b.safetensors", "..", "", "..\\x"])
def test_b90_index_cannot_name_files_outside_its_folder(name: str, sharded: Path) -> None:
    where = {"model.embed_tokens.weight": name}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(BadModelFile, match="outside its folder"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("cut", [1, 100])
def test_b82_truncated_safetensors_names_file_and_sizes(cut: int, tmp_path: Path) -> None:
    path = model(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(BadModelFile) as caught:
        open_checkpoint(tmp_path)
    assert f"{path}: truncated: expected size {len(whole)} bytes" in str(caught.value)
    assert str(len(whole) - cut) in str(caught.value)


def test_b82_lfs_pointer_in_place_of_safetensors(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n"
    (model(tmp_path) / "model.safetensors").write_bytes(pointer)
    with pytest.raises(BadModelFile, match="git lfs pull"):
        open_checkpoint(tmp_path)


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (raw_safetensors(entry(), bytes(8), length=2**63), "cut short"),
        (raw_safetensors(entry(), bytes(8), length=2**32), "cut short"),
        (b"\x01", "cut short"),
        (raw_safetensors(b"[" * 100_000), "not JSON"),
        (raw_safetensors(b"[1, 2]"), "not a JSON object"),
        (raw_safetensors(b'{"x": 1}'), "malformed"),
        (raw_safetensors(b'{"x": {}, "x": {}}'), "twice"),
        (raw_safetensors(entry(shape=[2**62, 4]), bytes(8)), "does not take 8 bytes"),
        (raw_safetensors(entry(shape=[-2]), bytes(8)), "malformed"),
        (raw_safetensors(entry(shape=[True, 2]), bytes(8)), "malformed"),
        (raw_safetensors(entry(shape="ab"), bytes(8)), "malformed"),
        (raw_safetensors(entry(data_offsets=[8, 0]), bytes(8)), "does not take"),
        (raw_safetensors(entry(data_offsets=[2**60, 2**60 + 8]), bytes(8)), "truncated"),
        (raw_safetensors(entry(data_offsets=[0.0, 8.0]), bytes(8)), "malformed"),
        (raw_safetensors(entry(dtype="F4"), bytes(8)), "unknown dtype 'F4'"),
        (raw_safetensors(entry(dtype=[]), bytes(8)), "malformed"),
        (raw_safetensors({"\x1b[2J": entry()["x"]}, bytes(8)), "control characters"),
        (raw_safetensors({"n" * 300: entry()["x"]}, bytes(8)), "too long"),
        (raw_safetensors({**entry(), "y": entry(data_offsets=[4, 12])["x"]}, bytes(12)), "overlaps"),
    ],
)
def test_hostile_safetensors_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (model(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(BadModelFile, match=message) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_safetensors_opens_or_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = model(tmp_path) / "model.safetensors"
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        checkpoint = open_checkpoint(tmp_path)
    except StartupError:
        return
    for name in checkpoint.tensors:
        assert checkpoint.tensors[name].float32().shape == checkpoint.shape(name)


def test_multimodal_config_and_prefixes_are_reduced_to_the_language_model(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 8, "sliding_window": 512}
    for prefix in ("language_model.model.", "model.language_model."):
        tensors = {
            f"{prefix}embed_tokens.weight": EMBEDDING,
            f"{prefix}layers.0.mlp.up_proj.weight": EMBEDDING,
            "vision_tower.vision_model.post_layernorm.weight": np.ones(3, np.int64),
            "model.vision_tower.x.weight": np.ones(3, np.float32),
            "multi_modal_projector.mm_input_projection_weight": np.ones(3, np.float32),
        }
        outer = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 99}}
        checkpoint = open_checkpoint(model(tmp_path, tensors, **outer))
        assert set(checkpoint.tensors) == {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"}
        assert checkpoint.config["model_type"] == "gemma3_text"
        assert checkpoint.config["hidden_size"] == 8
        assert checkpoint.config["eos_token_id"] == 2
        assert checkpoint.num_parameters == 64


def test_rope_settings_pass_through_unchanged(tmp_path: Path) -> None:
    new = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 1e4}}
    assert open_checkpoint(model(tmp_path, rope_parameters=new)).config["rope_parameters"] == new
    old = {"type": "dynamic", "factor": 2.0}
    config = open_checkpoint(model(tmp_path, rope_scaling=old, rope_theta=5e5)).config
    assert (config["rope_scaling"], config["rope_theta"]) == (old, 5e5)


@pytest.mark.parametrize(
    ("flag", "head", "expected"),
    [(None, False, True), (None, True, False), (False, False, True), (False, True, False), (True, True, True)],
)
def test_b79_tied_by_flag_or_by_absence_of_the_head(
    flag: bool | None, head: bool, expected: bool, tmp_path: Path
) -> None:
    tensors = {"model.embed_tokens.weight": EMBEDDING} | ({"lm_head.weight": EMBEDDING} if head else {})
    stated = {} if flag is None else {"tie_word_embeddings": flag}
    assert open_checkpoint(model(tmp_path, tensors, **stated)).config["tie_word_embeddings"] is expected


EXPERTS = "model.layers.0.mlp.experts"


def test_experts_stored_one_by_one_are_stacked(tmp_path: Path) -> None:
    # Twelve of them: "10" sorts before "2" as text.
    tensors = {
        f"{EXPERTS}.{n}.{p}_proj.weight": np.full((2, 3), n, np.float32) for n in range(12) for p in ("gate", "up")
    }
    checkpoint = open_checkpoint(model(tmp_path, tensors))
    assert set(checkpoint.tensors) == {f"{EXPERTS}.gate_proj.weight", f"{EXPERTS}.up_proj.weight"}
    assert checkpoint.shape(f"{EXPERTS}.up_proj.weight") == (12, 2, 3)
    assert checkpoint.tensors[f"{EXPERTS}.up_proj.weight"].float32()[:, 1, 2].tolist() == list(range(12))


def test_fused_experts_are_split(tmp_path: Path) -> None:
    fused = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
    down = np.arange(2 * 3 * 2, dtype=np.float32).reshape(2, 3, 2)
    tensors = {f"{EXPERTS}.gate_up_proj": fused, f"{EXPERTS}.down_proj": down}
    checkpoint = open_checkpoint(model(tmp_path, tensors))
    assert np.array_equal(checkpoint.tensors[f"{EXPERTS}.gate_proj.weight"].float32(), fused[:, :2])
    assert np.array_equal(checkpoint.tensors[f"{EXPERTS}.up_proj.weight"].float32(), fused[:, 2:])
    assert np.array_equal(checkpoint.tensors[f"{EXPERTS}.down_proj.weight"].float32(), down)


def test_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = {f"{EXPERTS}.{n}.up_proj.weight": np.ones((2, 3), np.float32) for n in (0, 1, 3)}
    with pytest.raises(BadModelFile, match="lacks expert 2"):
        open_checkpoint(model(tmp_path, tensors))


def test_expert_number_from_the_file_does_not_decide_how_much_work_is_done(tmp_path: Path) -> None:
    tensors = {f"{EXPERTS}.{10**15}.up_proj.weight": np.ones((2, 3), np.float32)}
    with pytest.raises(BadModelFile, match="lacks expert 0"):
        open_checkpoint(model(tmp_path, tensors))


def test_other_dtypes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is I64"):
        open_checkpoint(model(tmp_path, {"model.norm.weight": np.ones(4, np.int64)}))


def test_computed_buffers_are_left_out(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": EMBEDDING,
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float64),
    }
    assert set(open_checkpoint(model(tmp_path, tensors)).tensors) == {"model.embed_tokens.weight"}


@pytest.mark.parametrize("settings_", [{"quant_method": "gptq", "bits": 4}, "gptq"], ids=["object", "string"])
def test_quantized_checkpoint_is_refused_by_name(settings_: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="gptq"):
        open_checkpoint(model(tmp_path, quantization_config=settings_))


def test_b84_pickle_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(BadModelFile, match=r"pickle format \(pytorch_model\.bin\).*safetensors"):
        open_checkpoint(tmp_path)


def test_b64_directory_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json and no \*\.gguf"):
        open_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"has no config\.json and no \*\.gguf"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelNotFound, match=r"no \*\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000], ids=["empty", "cut", "list", "deep"])
def test_damaged_config_is_named(content: str, tmp_path: Path) -> None:
    (model(tmp_path) / "config.json").write_text(content)
    with pytest.raises(BadModelFile, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_folder_with_several_gguf_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.Q4_0.gguf", "b.Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"a\.Q4_0\.gguf, b\.Q8_0\.gguf"):
        open_checkpoint(tmp_path)


def test_safetensors_file_alone_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="directory"):
        open_checkpoint(model(tmp_path) / "model.safetensors")
