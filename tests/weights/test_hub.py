"""Hub repositories: which files are chosen, and the real Hugging Face client against a hub on this machine."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sojourn.errors import ModelNotFound, StartupError, UnsupportedModel
from sojourn.weights.fetch import resolve
from sojourn.weights.hub_files import choose_files

GGUF_REPOSITORY = [
    ".gitattributes", "README.md", "config.json", "imatrix.dat", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf",
    "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "mmproj-m-f16.gguf", "m.IQ4_NL.gguf",
]  # fmt: skip
HF_REPOSITORY = [
    "LICENSE", "README.md", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    "consolidated.safetensors", "original/x.safetensors", "pytorch_model.bin", "tokenizer.json", "tokenizer.model",
    "onnx/model.onnx",
]  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, ["m-Q4_K_M.gguf"]),
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q4_k_s", ["m-Q4_K_S.gguf"]),
        ("Q8_0", ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        ("IQ4_NL", ["m.IQ4_NL.gguf"]),
    ],
)
def test_tag_picks_a_quantization(quantization: str | None, expected: list[str]) -> None:
    assert choose_files("org/m", GGUF_REPOSITORY, quantization) == expected


@pytest.mark.parametrize("quantization", ["Q4", "Q4_K", "Q5_0", "f16"])
def test_tag_that_fits_nothing_lists_what_there_is(quantization: str) -> None:
    with pytest.raises(ModelNotFound, match=r"org/m: has no model with .*m-Q2_K, m-Q4_K_M"):
        choose_files("org/m", GGUF_REPOSITORY, quantization)


def test_tag_that_fits_several_models_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="several models"):
        choose_files("org/m", ["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0")


def test_single_gguf_needs_no_tag() -> None:
    assert choose_files("org/m", ["README.md", "what.gguf"], None) == ["what.gguf"]


def test_hugging_face_repository_takes_weights_once_and_no_pickles() -> None:
    chosen = choose_files("org/m", HF_REPOSITORY, None)
    assert set(chosen) == {
        "chat_template.jinja", "config.json", "generation_config.json", "merges.txt", "tokenizer.json",
        "tokenizer.model", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }  # fmt: skip


def test_repository_of_pickles_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="pickle"):
        choose_files("org/m", ["config.json", "pytorch_model.bin"], None)


def test_repository_without_a_model_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="neither"):
        choose_files("org/m", ["README.md"], None)


INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
FILES = {
    "org/shards": {
        "config.json": b"{}",
        "model-1.safetensors": b"1",
        "model-2.safetensors": b"2",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": INDEX,
    },
    "org/gguf": {"README.md": b"hello", "m-Q4_K_M.gguf": b"GGUF" + os.urandom(50_000), "m-Q8_0.gguf": b"GGUF big"},
    "org/hf": {"config.json": b"{}", "model.safetensors": os.urandom(3000), "tokenizer.json": b"{}", "x.bin": b"no"},
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which the client finds a hub that serves FILES."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            return

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            status, headers, content = self.find(self.path.split("?")[0])
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def find(self, path: str) -> tuple[int, dict[str, str], bytes]:
            if match := re.fullmatch(r"/api/models/(org/\w+)(?:/revision/\w+)?", path):
                if match[1] not in FILES:
                    return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
                files = [{"rfilename": name, "size": len(data)} for name, data in FILES[match[1]].items()]
                return 200, {}, json.dumps({"id": match[1], "sha": "a" * 40, "siblings": files}).encode()
            match = re.fullmatch(r"/(org/\w+)/resolve/\w+/(.+)", path)
            if match is None or match[2] not in FILES.get(match[1], {}):
                return 404, {"X-Error-Code": "EntryNotFound"}, b""
            content = FILES[match[1]][match[2]]
            return 200, {"X-Repo-Commit": "a" * 40, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and "OFFLINE" not in name}
    yield {**kept, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf")}
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import sys
from sojourn.errors import SojournError
from sojourn.weights.fetch import cached, resolve
seen = {}
try:
    print(cached(sys.argv[1]))
    print(resolve(sys.argv[1], progress=lambda label, done, total: seen.update({label: (done, total)})))
    print(seen)
except SojournError as error:
    print(type(error).__name__, error)
"""


def run(environment: dict[str, str], name: str) -> list[str]:
    """In a process of its own: the client reads its environment when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_gguf_repository_is_downloaded_with_progress_and_found_offline(hub: dict[str, str]) -> None:
    before, path, progress = run(hub, "org/gguf:Q4_K_M")
    content = FILES["org/gguf"]["m-Q4_K_M.gguf"]
    assert before == "None"
    assert Path(path).read_bytes() == content
    assert progress == str({"m-Q4_K_M.gguf": (len(content), len(content))})
    offline = {**hub, "SOJOURN_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    assert run(offline, "org/gguf:Q4_K_M") == [path, path, "{}"]
    assert run(offline, "org/gguf:Q8_0")[-1].startswith("ModelNotFound org/gguf: not in the hub cache")
    unreachable = {**hub, "HF_ENDPOINT": "http://127.0.0.1:1"}
    assert run(unreachable, "org/gguf:Q4_K_M") == [path, path, "{}"]


def test_what_is_in_the_caches_is_listed_by_what_to_call_it(hub: dict[str, str], tmp_path: Path) -> None:
    gguf = run(hub, "org/gguf:Q4_K_M")[1]
    directory = run(hub, "org/hf")[1]
    shards = Path(run(hub, "org/shards")[1])
    (shards / "model-2.safetensors").unlink()
    own = tmp_path / "cache/models/mine/m.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"GGUF")
    script = "from sojourn.weights.fetch import list_cached\nfor m in list_cached(): print(m.name, m.path, m.size)"
    environment = {**hub, "SOJOURN_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {name: (path, int(size)) for name, path, size in map(str.split, done.stdout.splitlines())}
    assert rows == {
        str(own): (str(own), 4),
        "org/gguf": (gguf, len(FILES["org/gguf"]["m-Q4_K_M.gguf"])),
        "org/hf": (directory, sum(map(len, (FILES["org/hf"][item.name] for item in Path(directory).iterdir())))),
    }
    for name, (path, _) in rows.items():
        assert run(environment, name)[:2] == [path, path]


def test_hugging_face_repository_gives_a_directory(hub: dict[str, str]) -> None:
    path = Path(run(hub, "org/hf")[1])
    assert {item.name for item in path.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


def test_repository_with_a_shard_missing_from_the_cache_is_fetched_again(hub: dict[str, str]) -> None:
    before, path, progress = run(hub, "org/shards")
    assert before == "None"
    assert list(ast.literal_eval(progress))[-2:] == ["model-1.safetensors", "model-2.safetensors"]
    assert run(hub, "org/shards")[:2] == [path, path]
    (Path(path) / "model-2.safetensors").unlink()
    assert run(hub, "org/shards")[:2] == ["None", path]
    assert (Path(path) / "model-2.safetensors").read_bytes() == b"2"


def test_b64_unknown_repository_is_one_line(hub: dict[str, str]) -> None:
    lines = run(hub, "org/missing")
    assert lines[-1].startswith("ModelNotFound org/missing: no such repository")
    assert len(lines) == 2


def test_unreachable_hub_is_one_line(hub: dict[str, str]) -> None:
    lines = run({**hub, "HF_ENDPOINT": "http://127.0.0.1:1"}, "org/gguf")
    assert lines[-1].startswith("StartupError org/gguf: cannot be fetched: ")
    assert len(lines) == 2


def test_offline_switch_with_an_empty_cache_is_one_line(hub: dict[str, str]) -> None:
    lines = run({**hub, "SOJOURN_OFFLINE": "1"}, "org/hf")
    assert lines[-1].startswith("ModelNotFound org/hf: not in the hub cache, and SOJOURN_OFFLINE")


def test_unknown_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_HUB", "nowhere")
    with pytest.raises(StartupError, match=r"'nowhere'.*huggingface or modelscope"):
        resolve("org/name")


def test_modelscope_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_HUB", "modelscope")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(StartupError, match=r"sojourn\[modelscope\]"):
        resolve("org/name")


def test_modelscope_gets_the_chosen_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is an extra that the tests do without; this stands in for the two calls made of it."""
    asked: dict[str, Any] = {}

    class HubApi:
        def get_model_files(self, repository: str, *, recursive: bool) -> list[dict[str, Any]]:
            folder = {"Path": "sub", "Type": "tree", "Size": 0}
            return [folder, *({"Path": name, "Type": "blob", "Size": 10} for name in GGUF_REPOSITORY)]

    def snapshot_download(repository: str, *, allow_patterns: list[str], progress_callbacks: list[type]) -> str:
        asked.update(repository=repository, patterns=allow_patterns)
        bar = progress_callbacks[0](allow_patterns[0], 10)
        bar.update(4)
        bar.end()
        return str(tmp_path)

    modules = {
        "modelscope": types.ModuleType("modelscope"),
        "modelscope.hub": types.ModuleType("modelscope.hub"),
        "modelscope.hub.api": types.SimpleNamespace(HubApi=HubApi),
        "modelscope.hub.snapshot_download": types.SimpleNamespace(snapshot_download=snapshot_download),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SOJOURN_HUB", "modelscope")
    for name in ("SOJOURN_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    seen: list[tuple[str, int, int | None]] = []
    path = resolve("org/name:Q2_K", progress=lambda *step: seen.append(step))
    assert path == tmp_path / "m-Q2_K.gguf"
    assert asked == {"repository": "org/name", "patterns": ["m-Q2_K.gguf"]}
    assert seen == [("m-Q2_K.gguf", 4, 10), ("m-Q2_K.gguf", 10, 10)]
