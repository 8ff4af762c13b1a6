"""Which kernels a CPU gets, what is said where it gets lesser ones, and builds that it can't run at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sojourn import machine
from sojourn.errors import StartupError
from sojourn.executor import native_backend
from sojourn.executor.native_backend import choose_isa
from sojourn.native import _kernels, build_needs, isas, missing_isas

AVX2_CPU = (["avx2", "portable"], {"avx512_vnni": ["avx512f", "avx512_vnni"]})
OLD_CPU = (["portable"], {"avx512_vnni": ["avx2", "fma", "avx512f"], "avx2": ["avx2", "fma"]})


def pretend(monkeypatch: pytest.MonkeyPatch, cpu: tuple[list[str], dict[str, list[str]]], wanted: str = "") -> None:
    monkeypatch.setattr(native_backend, "isas", lambda: cpu[0])
    monkeypatch.setattr(native_backend, "missing_isas", lambda: cpu[1])
    monkeypatch.setenv("SOJOURN_ISA", wanted)


def cpu(root: Path, flags: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"model name\t: Test CPU\nflags\t\t: {flags}\n")
    return root


def library(root: Path, needs: str) -> Path:
    path = root / "_kernels.so"
    path.write_bytes(b"\x7fELF" + bytes(5000) + f"sojourn-needs:{needs};".encode() + bytes(5000))
    return path


def test_b76_the_best_set_is_chosen_and_the_next_better_one_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, AVX2_CPU)
    assert choose_isa() == ("avx2", "avx512_vnni needs avx512f, avx512_vnni, which this CPU lacks")
    pretend(monkeypatch, OLD_CPU)
    assert choose_isa() == ("portable", "avx2 needs avx2, fma, which this CPU lacks")
    pretend(monkeypatch, (["portable"], {}))
    assert choose_isa() == ("portable", "the best there are kernels for")


def test_b76_a_forced_set_is_taken_or_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, AVX2_CPU, "portable")
    assert choose_isa() == ("portable", "as SOJOURN_ISA says; avx2 is the best this CPU runs")
    pretend(monkeypatch, AVX2_CPU, "avx512_vnni")
    with pytest.raises(StartupError, match=r"lacks avx512f, avx512_vnni\. It runs avx2, portable"):
        choose_isa()


def test_b76_what_runs_and_what_does_not_are_all_there_is() -> None:
    assert isas()[-1] == "portable"
    assert not set(isas()) & set(missing_isas())
    flags = machine.cpu_flags()
    for name, features in missing_isas().items():
        assert features, name
        assert not set(features) & flags, f"{name} was refused though the CPU has what it needs"


def test_b76_a_build_for_a_newer_cpu_is_refused_by_name_before_it_is_loaded(tmp_path: Path) -> None:
    built = library(tmp_path, " avx2 avx512f avx512_vnni")
    root = cpu(tmp_path, "sse4_2 avx avx2 fma")
    with pytest.raises(StartupError, match=r"_kernels\.so were compiled .* with avx512f, avx512_vnni, which"):
        build_needs.check_library(built, root)


@pytest.mark.parametrize("needs", ["", " avx2", " avx avx2 fma"])
def test_b76_a_build_that_fits_is_not_refused(tmp_path: Path, needs: str) -> None:
    build_needs.check_library(library(tmp_path, needs), cpu(tmp_path, "avx avx2 fma"))


def test_b76_where_the_flags_are_unknown_nothing_is_refused(tmp_path: Path) -> None:
    build_needs.check_library(library(tmp_path, " avx512f"), tmp_path)


def test_b76_this_build_says_what_it_needs_and_the_check_finds_it() -> None:
    assert _kernels.needs.startswith("sojourn-needs:")
    found = build_needs._NEEDS.search(Path(_kernels.__file__).read_bytes())
    assert found is not None
    assert found[0].decode() == _kernels.needs
    assert set(found[1].decode().split()) <= machine.cpu_flags()
