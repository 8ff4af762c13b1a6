"""Damaged and malicious GGUF files: a tidy error that names the problem, in bounded time and memory."""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sojourn.errors import BadModelFile, ModelNotFound, StartupError, UnsupportedModel
from sojourn.weights.checkpoint import open_checkpoint
from tests.weights import gguf_bytes as g


def changed(**parts: object) -> Callable[[], bytes]:
    def build() -> bytes:
        file = g.small_llama()
        for name, part in parts.items():
            setattr(file, name, part)
        return file.build()

    return build


def with_entry(*extra: bytes) -> Callable[[], bytes]:
    return changed(entries=[*extra, *g.LLAMA_ENTRIES])


def with_tensor(*rows: bytes) -> Callable[[], bytes]:
    return changed(tensors=[g.tensor("token_embd.weight", [32, 4]), *rows])


def replaced(key: str, *new: bytes) -> Callable[[], bytes]:
    kept = [item for item in g.LLAMA_ENTRIES if not item.startswith(g.string(key))]
    assert len(kept) < len(g.LLAMA_ENTRIES)
    return changed(entries=[*kept, *new])


HOSTILE: dict[str, tuple[Callable[[], bytes], type[StartupError], str]] = {
    "entry count 2**63": (changed(num_entries=2**63), BadModelFile, "metadata of 9223372036854775808 entries"),
    "entry count above the limit": (
        changed(num_entries=200_000, data=bytes(4 << 20)),
        BadModelFile,
        "200000 metadata entries",
    ),
    "entry count one too high": (changed(num_entries=12), StartupError, ""),
    "tensor count 2**63": (changed(num_tensors=2**63), BadModelFile, "table of 9223372036854775808 tensors"),
    "tensor count above the limit": (changed(num_tensors=200_000, data=bytes(8 << 20)), BadModelFile, "200000 tensors"),
    "key length 2**62": (with_entry(struct.pack("<Q", 2**62) + b"x" * 64), BadModelFile, "metadata key 0"),
    "key longer than allowed": (with_entry(g.entry("k" * 70_000, g.UINT8, 1)), BadModelFile, "65535 allowed"),
    "key not UTF-8": (with_entry(g.entry(b"\xff\xfe", g.UINT8, 1)), BadModelFile, "UTF-8"),
    "key with an escape sequence": (
        with_entry(g.entry("\x1b]0;x\x07", g.UINT8, 1)),
        BadModelFile,
        "metadata key 0 has control characters: '\\x1b]0;x\\x07'",
    ),
    "name with a line break": (with_tensor(g.tensor("x\ny", [32], offset=512)), BadModelFile, "control characters"),
    "architecture with a line break": (
        replaced("general.architecture", g.entry("general.architecture", g.STRING, "a\nb" * 1000)),
        UnsupportedModel,
        "'a\\nba",
    ),
    "key twice": (with_entry(g.LLAMA_ENTRIES[1]), BadModelFile, "appears twice"),
    "string length 2**62": (
        with_entry(g.string("s") + struct.pack("<IQ", g.STRING, 2**62) + b"x" * 64),
        BadModelFile,
        "s needs 4611686018427387904 bytes",
    ),
    "string length 2**64 - 1": (
        with_entry(g.string("s") + struct.pack("<IQ", g.STRING, 2**64 - 1) + b"x" * 64),
        BadModelFile,
        "s needs",
    ),
    "unknown value type": (with_entry(g.string("v") + struct.pack("<I", 13) + bytes(8)), BadModelFile, "type 13"),
    "bool of 7": (with_entry(g.entry("v", g.BOOL, 7)), BadModelFile, "bool of 7"),
    "array count 2**61": (with_entry(g.array("a", g.FLOAT64, [1.0], count=2**61)), BadModelFile, "a needs"),
    "array count 2**64 - 1": (with_entry(g.array("a", g.UINT8, [1], count=2**64 - 1)), BadModelFile, "a needs"),
    "string array count 2**61": (with_entry(g.array("a", g.STRING, ["x"], count=2**61)), BadModelFile, "a needs"),
    "string array above the limit": (
        changed(entries=[*g.LLAMA_ENTRIES, g.array("a", g.STRING, [], count=5_000_000)], data=bytes(48 << 20)),
        BadModelFile,
        "5000000 strings",
    ),
    "string in an array too long": (
        with_entry(g.string("a") + struct.pack("<IIQQ", g.ARRAY, g.STRING, 2, 2**62) + bytes(64)),
        BadModelFile,
        "string 0 of a needs",
    ),
    "array of arrays": (
        with_entry(g.string("a") + struct.pack("<IIQ", g.ARRAY, g.ARRAY, 1) + bytes(64)),
        BadModelFile,
        "array of arrays",
    ),
    "array of unknown type": (
        with_entry(g.string("a") + struct.pack("<IIQ", g.ARRAY, 77, 1) + bytes(64)),
        BadModelFile,
        "type 77",
    ),
    "alignment 0": (with_entry(g.entry("general.alignment", g.UINT32, 0)), BadModelFile, "general.alignment is 0"),
    "alignment 3": (with_entry(g.entry("general.alignment", g.UINT32, 3)), BadModelFile, "general.alignment is 3"),
    "alignment 2**31": (with_entry(g.entry("general.alignment", g.UINT32, 2**31)), BadModelFile, "is 2147483648"),
    "alignment negative": (with_entry(g.entry("general.alignment", g.INT32, -32)), BadModelFile, "is -32"),
    "alignment a string": (with_entry(g.entry("general.alignment", g.STRING, "32")), BadModelFile, "an integer"),
    "alignment an array": (with_entry(g.array("general.alignment", g.UINT8, [32])), BadModelFile, "array of uint8"),
    "dimension 2**42 + 1": (with_tensor(g.tensor("x", [2**42 + 1], offset=512)), BadModelFile, "truncated"),
    "dimensions that overflow": (with_tensor(g.tensor("x", [2**32] * 3, offset=512)), BadModelFile, "truncated"),
    "dimensions that wrap to 0": (with_tensor(g.tensor("x", [2**63, 2, 2, 1], offset=512)), BadModelFile, "truncated"),
    "dimension 0": (with_tensor(g.tensor("x", [32, 0])), BadModelFile, "dimension of 0"),
    "no dimensions": (with_tensor(g.tensor("x", [])), BadModelFile, "0 dimensions"),
    "five dimensions": (with_tensor(g.tensor("x", [1] * 5)), BadModelFile, "5 dimensions"),
    "2**32 - 1 dimensions": (with_tensor(g.tensor("x", [1], dimensions=2**32 - 1)), BadModelFile, "4294967295"),
    "part of a block": (with_tensor(g.tensor("x", [31, 2], kind=2, offset=512)), BadModelFile, "Q4_0"),
    "offset past the end": (with_tensor(g.tensor("x", [32], offset=1 << 20)), BadModelFile, "truncated"),
    "offset near 2**64": (with_tensor(g.tensor("x", [32], offset=2**64 - 32)), BadModelFile, "truncated"),
    "offset not aligned": (with_tensor(g.tensor("x", [8], offset=516)), BadModelFile, "multiple of 32"),
    "tensors overlap": (with_tensor(g.tensor("x", [32], offset=256)), BadModelFile, "overlaps"),
    "tensor twice": (with_tensor(g.tensor("token_embd.weight", [32], offset=512)), BadModelFile, "appears twice"),
    "name longer than allowed": (with_tensor(g.tensor("n" * 2000, [32], offset=512)), BadModelFile, "256 allowed"),
    "name not UTF-8": (with_tensor(g.tensor(b"\xff", [32], offset=512)), BadModelFile, "UTF-8"),
    "a type not read": (with_tensor(g.tensor("x", [256], kind=16, offset=512)), UnsupportedModel, "IQ2_XXS"),
    "a type nobody knows": (with_tensor(g.tensor("x", [256], kind=99, offset=512)), UnsupportedModel, "type 99"),
    "scores as uint8": (
        replaced("tokenizer.ggml.scores", g.array("tokenizer.ggml.scores", g.UINT8, [0] * 4)),
        BadModelFile,
        "array of uint8, not an array of float32",
    ),
    "scores too short": (
        replaced("tokenizer.ggml.scores", g.array("tokenizer.ggml.scores", g.FLOAT32, [0.0])),
        BadModelFile,
        "1 entries for 4 tokens",
    ),
    "token types as strings": (
        replaced("tokenizer.ggml.token_type", g.array("tokenizer.ggml.token_type", g.STRING, ["1"] * 4)),
        BadModelFile,
        "array of string",
    ),
    "tokens a single string": (
        replaced("tokenizer.ggml.tokens", g.entry("tokenizer.ggml.tokens", g.STRING, "abcd")),
        BadModelFile,
        "no array",
    ),
    "head count 0": (
        replaced("llama.attention.head_count", g.entry("llama.attention.head_count", g.UINT32, 0)),
        BadModelFile,
        "head_count is 0",
    ),
    "layer count a string": (
        replaced("llama.block_count", g.entry("llama.block_count", g.STRING, "1")),
        BadModelFile,
        "an integer",
    ),
    "architecture a number": (
        replaced("general.architecture", g.entry("general.architecture", g.UINT32, 1)),
        BadModelFile,
        "a string",
    ),
    "no architecture": (replaced("general.architecture"), BadModelFile, "general.architecture"),
    "no layer count": (replaced("llama.block_count"), BadModelFile, "llama.block_count is missing"),
    "version 1": (changed(version=1), UnsupportedModel, "version 1"),
    "version 4": (changed(version=4), UnsupportedModel, "version 4"),
    "big-endian": (changed(version=3 << 24), UnsupportedModel, "big-endian"),
    "split count a string": (with_entry(g.entry("split.count", g.STRING, "2")), BadModelFile, "split.count"),
    "split count negative": (with_entry(g.entry("split.count", g.INT32, -2)), BadModelFile, "shard 1 of -2"),
}


def test_the_file_the_hostile_ones_are_made_from_opens(tmp_path: Path) -> None:
    path = tmp_path / "fine.gguf"
    path.write_bytes(g.small_llama().build())
    checkpoint = open_checkpoint(path)
    assert checkpoint.tensors["model.norm.weight"].float32()[0] == 128.0


@pytest.mark.parametrize("name", HOSTILE)
def test_b83_hostile_file_is_refused_by_name_of_its_fault(name: str, tmp_path: Path) -> None:
    build, error, message = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(build())
    start = time.monotonic()
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - start < 2


_OPEN_ALL = """
import resource, sys
from pathlib import Path
from sojourn.errors import StartupError
from sojourn.weights.checkpoint import open_checkpoint
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        open_checkpoint(path)
    except StartupError:
        continue
    raise SystemExit(f"{path} was accepted")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_b83_hostile_files_take_less_than_100_mb(tmp_path: Path) -> None:
    for number, (build, _, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{number}.gguf").write_bytes(build())
    ran = subprocess.run(
        [sys.executable, "-c", _OPEN_ALL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(ran.stdout) * unit < 100e6


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_b83_a_file_with_changed_bytes_opens_or_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    raw = bytearray(g.small_llama().build())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(4, len(raw) - 9))
        if data.draw(st.booleans()):
            raw[position] = data.draw(st.integers(0, 255))
        else:
            special = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]))
            raw[position : position + 8] = struct.pack("<Q", special)
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2, data.draw(st.integers(5, len(raw)))]))])
    try:
        checkpoint = open_checkpoint(path)
    except StartupError:
        return
    # What was accepted can also be read.
    for name in checkpoint.tensors:
        assert checkpoint.tensors[name].float32().shape == checkpoint.shape(name)
    assert checkpoint.metadata is not None
    for key in checkpoint.metadata:
        with contextlib.suppress(BadModelFile):  # a token that is no text
            assert checkpoint.metadata[key] is not None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300))
def test_b83_random_bytes_behind_the_magic_are_refused(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + body)
    with pytest.raises(StartupError):
        open_checkpoint(path)


@pytest.mark.parametrize("cut", ["by one byte", "by half", "in the header", "in the magic"])
def test_b82_truncated_file_names_file_and_sizes(cut: str, tmp_path: Path) -> None:
    whole = g.small_llama().build()
    length = {"by one byte": len(whole) - 1, "by half": len(whole) // 2, "in the header": 40, "in the magic": 3}[cut]
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(BadModelFile) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    if cut == "by one byte":
        assert f"byte {len(whole)}, so that is the expected size" in message
    if cut != "in the magic":
        assert f"{length} bytes" in message
        assert "interrupted" in message


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS_POINTER, "Git LFS pointer"),
        (b"", "empty"),
        (b"<!DOCTYPE html><html>Sign in</html>", "web page"),
        (b"These are not weights.\n", "text file"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
        (bytes(100), "unknown binary"),
    ],
    ids=["lfs", "empty", "html", "text", "zip", "zeros"],
)
def test_b82_what_is_no_gguf_is_called_what_it_is(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(BadModelFile, match=message):
        open_checkpoint(path)


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(BadModelFile, match="not a regular file"):
        open_checkpoint(path)


def shard(number: int, count: int, names: list[str], total: int) -> bytes:
    """Shard `number` (from 1). Only the first has the model's metadata, as gguf-split writes them."""
    split = [
        g.entry("split.no", g.UINT16, number - 1),
        g.entry("split.count", g.UINT16, count),
        g.entry("split.tensors.count", g.INT32, total),
    ]
    rows = [g.tensor(name, [32, 4], offset=512 * index) for index, name in enumerate(names)]
    floats = [float(number)] * 128 * len(names)
    return g.Parts(
        entries=[*(g.LLAMA_ENTRIES if number == 1 else []), *split],
        tensors=rows,
        data=struct.pack(f"<{len(floats)}f", *floats),
    ).build()


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    names = [["token_embd.weight"], ["blk.0.attn_v.weight", "blk.0.attn_output.weight"], ["output.weight"]]
    paths = []
    for number, held in enumerate(names, 1):
        path = tmp_path / f"small-0000{number}-of-00003.gguf"
        path.write_bytes(shard(number, 3, held, 4))
        paths.append(path)
    return paths


def test_b82_first_shard_loads_all(shards: list[Path]) -> None:
    checkpoint = open_checkpoint(shards[0])
    assert len(checkpoint.tensors) == 4
    assert checkpoint.tensors["lm_head.weight"].float32()[0, 0] == 3.0
    assert checkpoint.config["tie_word_embeddings"] is False


def test_b82_any_shard_or_their_folder_finds_the_first(shards: list[Path]) -> None:
    for given_path in (shards[1], shards[2], shards[0].parent):
        checkpoint = open_checkpoint(given_path)
        assert checkpoint.path == shards[0]
        assert len(checkpoint.tensors) == 4


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_b82_missing_shard_is_named(gone: int, shards: list[Path]) -> None:
    shards[gone].unlink()
    with pytest.raises(BadModelFile, match=shards[gone].name):
        open_checkpoint(shards[(gone + 1) % 3])


def test_b82_truncated_second_shard_is_named(shards: list[Path]) -> None:
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    with pytest.raises(BadModelFile, match=f"{shards[1].name}: truncated"):
        open_checkpoint(shards[0])


def test_b82_shard_of_another_model_is_refused(shards: list[Path]) -> None:
    shards[1].write_bytes(shard(2, 4, ["blk.0.attn_v.weight"], 9))
    with pytest.raises(BadModelFile, match="content says 2 of 4"):
        open_checkpoint(shards[0])


def test_b82_shards_with_wrong_total_are_refused(shards: list[Path]) -> None:
    shards[2].write_bytes(shard(3, 3, ["output.weight", "output_norm.weight"], 4))
    with pytest.raises(BadModelFile, match="hold 5 tensors together, but should hold 4"):
        open_checkpoint(shards[0])


def test_b82_tensor_in_two_shards_is_refused(shards: list[Path]) -> None:
    shards[2].write_bytes(shard(3, 3, ["token_embd.weight"], 4))
    with pytest.raises(BadModelFile, match=r"token_embd.weight is also in small-00001"):
        open_checkpoint(shards[0])


def test_b82_shards_joined_with_cat_are_recognised(shards: list[Path], tmp_path: Path) -> None:
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in shards))
    with pytest.raises(BadModelFile, match="joined into one file"):
        open_checkpoint(joined)


def test_b82_renamed_shard_says_what_names_are_needed(shards: list[Path], tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.gguf"
    shards[0].rename(renamed)
    with pytest.raises(BadModelFile, match=r"NAME-00001-of-00003\.gguf"):
        open_checkpoint(renamed)


def test_shard_name_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_checkpoint(tmp_path / "small-00001-of-00002.gguf")


def test_opening_reads_headers_only(tmp_path: Path) -> None:
    """A sparse file of 8 GB opens without its tensor data coming into memory."""
    file = g.small_llama()
    file.tensors.append(g.tensor("blk.0.ffn_up.weight", [32, 1 << 26], offset=1024))
    path = tmp_path / "large.gguf"
    with path.open("wb") as output:
        output.write(file.build())
        output.truncate((1 << 33) + 4096)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint = open_checkpoint(path)
    assert checkpoint.shape("model.layers.0.mlp.up_proj.weight") == (1 << 26, 32)
    assert checkpoint.tensors["model.layers.0.mlp.up_proj.weight"].data.size == 1 << 33
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
