"""The GGUF reader against files that the `gguf` package wrote."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize

from sojourn import native
from sojourn.errors import UnsupportedModel
from sojourn.weights.formats import FORMATS
from sojourn.weights.gguf_reader import GGUFFile, read_gguf


def write(path: Path, writer: gguf.GGUFWriter) -> GGUFFile:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000}
    numbers |= {"int32": -2_000_000_000, "uint64": 2**63, "int64": -(2**62)}
    for kind, number in numbers.items():
        getattr(writer, f"add_{kind}")(kind, number)
    writer.add_float32("float32", 0.1)
    writer.add_float64("float64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "héllo 世界 🙂\n")
    writer.add_array("floats", [0.5, -0.25])
    writer.add_array("strings", ["", "a", "世界"])
    writer.add_array("bools", [True, False])
    metadata = write(path, writer).metadata
    assert {kind: metadata[kind] for kind in numbers} == numbers
    assert metadata["float32"] == float(np.float32(0.1))
    assert metadata["float64"] == 0.1
    assert metadata["bool"] is True
    assert metadata["string"] == "héllo 世界 🙂\n"
    assert metadata["floats"] == [0.5, -0.25]
    assert metadata["strings"] == ["", "a", "世界"]
    assert metadata["bools"] == [True, False]
    assert "nothing" not in metadata
    assert metadata.get("nothing", 7) == 7
    assert set(metadata) >= {*numbers, "general.architecture", "strings"}


def test_every_storage_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "formats.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    stored = {}
    for seed, (name, item) in enumerate(FORMATS.items()):
        blocks = 512 // item.block_elements
        raw = np.random.default_rng(seed).integers(0, 60, size=(3, blocks * item.block_bytes), dtype=np.uint8)
        stored[name] = raw
        kind = gguf.GGMLQuantizationType[name]
        plain = {"F32": "<f4", "F16": "<f2"}.get(name)
        writer.add_tensor(name, raw.view(plain) if plain else raw, raw_dtype=None if plain else kind)
    file = write(path, writer)
    for name, raw in stored.items():
        info = file.tensors[name]
        assert (info.shape, info.format.name) == ((3, 512), name)
        assert np.array_equal(file.file.view(info.offset, info.nbytes), raw.reshape(-1))


def test_tensor_data_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "view.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", np.arange(64, dtype=np.float32))
    file = write(path, writer)
    view = file.file.view(file.tensors["x"].offset, 256)
    assert not view.flags.owndata
    assert not view.flags.writeable


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", np.arange(64, dtype=np.float32))
    write(path, writer)
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    path.write_bytes(raw)
    assert read_gguf(path).tensors["x"].shape == (64,)


def test_big_endian_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("x", np.arange(64, dtype=np.float32))
    with pytest.raises(UnsupportedModel, match="big-endian"):
        write(path, writer)


@pytest.mark.parametrize("alignment", [64, 4096])
def test_other_alignments_are_honoured(alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_tensor("x", np.arange(5, dtype=np.float32))
    writer.add_tensor("y", np.arange(7, dtype=np.float32))
    file = write(path, writer)
    info = file.tensors["y"]
    assert info.offset % alignment == 0
    assert file.file.view(info.offset, info.nbytes).view(np.float32).tolist() == list(range(7))


def test_random_blocks_come_back_through_the_whole_path(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    weights = np.random.default_rng(5).standard_normal((4, 256)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q5_0
    quantized = gguf.quants.quantize(weights, kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", quantized, raw_dtype=kind)
    file = write(path, writer)
    info = file.tensors["w"]
    assert info.shape == (4, 256)
    found = native.dequantize(info.format.name, file.file.view(info.offset, info.nbytes)).reshape(info.shape)
    assert np.array_equal(found, gguf_dequantize(quantized, kind))
