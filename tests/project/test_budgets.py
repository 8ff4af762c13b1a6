"""Size budgets, so that growth is a decision. Prints the table of lines per package on every run."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict

from sojourn.config import CacheConfig, EngineConfig, FrontendConfig, SchedulerConfig, ServerConfig

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 500
MAX_CONSTRUCTOR_PARAMETERS = 8
MAX_OPTIONS = 42
NATIVE_SUFFIXES = {".cpp", ".h", ".hpp", ".cc"}


def functions(tree: ast.AST):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_functions_fit_on_a_screen(sources):
    long = [
        f"{source.path}:{function.lineno} {function.name}: {lines_of(function)} lines"
        for source in sources
        for function in functions(source.tree)
        if lines_of(function) > MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_files_stay_short(sources, root):
    sizes = {source.path: source.num_lines for source in sources}
    native = [path for path in (root / "native").rglob("*") if path.suffix in NATIVE_SUFFIXES]
    sizes |= {path.relative_to(root): path.read_text(encoding="utf-8").count("\n") for path in native}
    long = [f"{path}: {lines} lines" for path, lines in sizes.items() if lines > MAX_FILE_LINES]
    assert not long, "\n".join(long)


def test_constructors_take_few_parameters(sources):
    wide = []
    for source in sources:
        for function in functions(source.tree):
            args = function.args
            count = len(args.posonlyargs + args.args + args.kwonlyargs) - 1  # without self
            if function.name == "__init__" and count > MAX_CONSTRUCTOR_PARAMETERS:
                wide.append(f"{source.path}:{function.lineno}: {count} parameters")
    assert not wide, "\n".join(wide)


def test_user_visible_options_are_few_and_described():
    configs = (SchedulerConfig, CacheConfig, EngineConfig, FrontendConfig, ServerConfig)
    helps = {
        field.name: field.metadata["help"]
        for config in configs
        for field in dataclasses.fields(config)
        if "help" in field.metadata
    }
    assert len(helps) <= MAX_OPTIONS
    assert all(text.endswith(".") and "\n" not in text for text in helps.values())


def test_table_of_lines(sources, root, capsys):
    rows: dict[str, list[int]] = defaultdict(list)
    for source in sources:
        rows[source.package or "sojourn"].append(source.num_lines)
    for path in (root / "native").rglob("*"):
        if path.suffix in NATIVE_SUFFIXES:
            rows["native (C++)"].append(path.read_text(encoding="utf-8").count("\n"))
    sizes = sorted(lines_of(function) for source in sources for function in functions(source.tree))
    with capsys.disabled():
        print(f"\n{'package':14}{'files':>6}{'lines':>7}{'biggest':>9}")
        for name, lines in sorted(rows.items()):
            print(f"{name:14}{len(lines):6}{sum(lines):7}{max(lines):9}")
        print(f"{'total':14}{sum(map(len, rows.values())):6}{sum(map(sum, rows.values())):7}")
        print(
            f"functions: {len(sizes)}, lines: median {sizes[len(sizes) // 2]}, "
            f"p90 {sizes[len(sizes) * 9 // 10]}, longest {sizes[-1]}"
        )
    assert sum(map(sum, rows.values())) > 0
