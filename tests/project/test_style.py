"""Habits that reviews should not have to look for: each rule is one test over the parsed source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest


def test_every_file_says_what_it_owns(sources):
    silent = [str(source.path) for source in sources if source.text.strip() and not ast.get_docstring(source.tree)]
    assert not silent, f"no docstring on top: {silent}"


def test_b84_nothing_deserialises_objects(sources):
    """Between processes and from files only typed formats are read: a pickle would run whatever a peer sends."""
    modules = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
    calls = {"send_pyobj", "recv_pyobj", "eval", "exec", "unsafe_load", "full_load"}
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]} & modules
            elif isinstance(node, ast.Call):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                names = {name} & calls
            found += [f"{source.path}:{node.lineno} {name}" for name in names]
    assert not found, "\n".join(found)


def test_no_error_is_swallowed(sources):
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            empty = all(
                isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
                for line in node.body
            )
            if node.type is None or empty:
                found.append(f"{source.path}:{node.lineno}")
    assert not found, f"bare or empty except: {found}"


def test_nothing_is_left_unfinished(sources):
    found = [
        f"{source.path}:{number}: {line.strip()}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError", line)
    ]
    assert not found, "\n".join(found)


def test_no_mixins_no_globals_no_utils(sources):
    found = [
        str(source.path) for source in sources if source.path.stem in {"utils", "util", "helpers", "misc", "common"}
    ]
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Global):
                found.append(f"{source.path}:{node.lineno} global {node.names}")
            if isinstance(node, ast.ClassDef) and node.name.endswith("Mixin"):
                found.append(f"{source.path}:{node.lineno} class {node.name}")
    assert not found, "\n".join(found)


def test_import_of_ours_inside_a_function_gives_its_reason(sources):
    """Allowed for quick start-up, never to dodge a cycle. The comment is on or above the block of imports."""
    found = []
    for source in sources:
        lines = source.text.splitlines()
        for function in ast.walk(source.tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sojourn"):
                    continue
                first = node.lineno - 1
                while first > 0 and re.match(r"\s*($|import\s|from\s)", lines[first - 1]):
                    first -= 1
                block = lines[first : node.lineno]
                if not any("#" in line for line in block) and not lines[first - 1].lstrip().startswith("#"):
                    found.append(f"{source.path}:{node.lineno}")
    assert not found, f"import inside a function without a reason: {found}"


def test_tests_are_neither_skipped_nor_expected_to_fail(root):
    pattern = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)\b")
    here = root / "tests" / "project" / "test_style.py"
    found = [
        str(path.relative_to(root))
        for path in (root / "tests").rglob("*.py")
        if path != here and pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"skipped tests in: {found}"


@pytest.mark.parametrize("module", ["torch", "transformers", "fastapi", "numpy", "tokenizers"])
def test_package_import_is_light(module):
    code = f"import sys, sojourn; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
