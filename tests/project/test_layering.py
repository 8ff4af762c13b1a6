"""Imports go in the direction a request travels. The table below is the law; a new arrow is a decision made here."""

from __future__ import annotations

import ast
import subprocess
import sys

# Who may import whom (packages and top-level modules of ours). cli is the composition root and may import anybody.
LEAVES = {"errors", "config", "env", "records", "machine", "gc_pauses"}
ALLOWED = {
    "": set(),  # sojourn/__init__.py: see test_package_import_is_light
    "errors": set(),
    "env": set(),
    "machine": set(),
    "gc_pauses": set(),
    "config": {"errors"},
    "records": {"errors"},
    "timeline": LEAVES,
    "server": {"frontend", "timeline"} | LEAVES,
    "frontend": {"ipc", "timeline"} | LEAVES,
    "ipc": LEAVES,
    "core": {"executor"} | LEAVES,
    "executor": {"graph", "models", "weights", "native"} | LEAVES,
    "models": {"graph"} | LEAVES,
    "graph": LEAVES,
    "weights": {"native"} | LEAVES,
    "native": LEAVES,
    "bench": LEAVES,
    "llm": {"core", "executor", "frontend", "weights"} | LEAVES,
}
# Single files that know more than their package: the engine process, its end of the channel, and what it loads.
EXTRA = {
    "core.proc": {"ipc"},
    "core.loop": {"ipc"},
    "core.build": {"graph", "models", "weights"},
}
# Files of core/ that handle arrays; all the others are ints, lists and deques.
CORE_WITH_ARRAYS = {"core.engine_core", "core.build", "core.proc", "core.plan"}
# Third-party libraries that only some packages may know.
CONFINED = {
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "pydantic": {"server"},
    "prometheus_client": {"server", "timeline"},
    "opentelemetry": {"timeline"},
    "tokenizers": {"frontend"},
    "jinja2": {"frontend"},
    "safetensors": {"weights"},
    "huggingface_hub": {"weights"},
    "typer": {"cli"},
    "rich": {"cli"},
    "yaml": {"cli"},
}
FORBIDDEN = {"torch", "transformers", "gguf", "sentencepiece", "llama_cpp", "vllm", "psutil"}


def imported(tree: ast.AST) -> set[str]:
    """Dotted names of every import in a file, wherever it stands; `from a import b` gives both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write the full name"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def ours(tree: ast.AST) -> set[str]:
    return {name.removeprefix("sojourn.") for name in imported(tree) if name.startswith("sojourn.")}


def needed(tree: ast.AST, modules: set[str]) -> set[str]:
    """Modules of ours that a file needs: `from sojourn.a import b` needs a.b where that is a module, else a itself."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("sojourn.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sojourn":
            package = (node.module or "").removeprefix("sojourn").lstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".lstrip(".")
                compiled = alias.name.startswith("_")  # the extension module: no Python file
                names.add(inner if inner in modules or compiled else package)
    return names & modules


def test_imports_follow_the_direction_of_knowledge(sources):
    wrong = []
    for source in sources:
        if source.package in ("cli", ""):
            continue
        assert source.package in ALLOWED, f"{source.path}: package {source.package!r} has no row in ALLOWED"
        allowed = ALLOWED[source.package] | EXTRA.get(source.module, set()) | {source.package, "__version__"}
        wrong += [
            f"{source.path} imports {name}" for name in sorted(ours(source.tree)) if name.split(".")[0] not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_modules_form_no_cycle(sources):
    modules = {source.module for source in sources}
    graph = {source.module: needed(source.tree, modules) - {source.module} for source in sources}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "import cycle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in sorted(modules):
        visit(module, ())


def test_core_scheduling_files_know_no_arrays_http_or_tokenizer(sources):
    banned = {"numpy", "fastapi", "starlette", "uvicorn", "tokenizers", "jinja2", "socket", "asyncio"}
    wrong = [
        f"{source.path} imports {name}"
        for source in sources
        if source.package == "core" and source.module not in CORE_WITH_ARRAYS
        for name in imported(source.tree)
        if name.split(".")[0] in banned
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_the_package_they_belong_to(sources):
    wrong = []
    for source in sources:
        for name in {name.split(".")[0] for name in imported(source.tree)}:
            if name in FORBIDDEN or (name in CONFINED and source.package not in CONFINED[name]):
                wrong.append(f"{source.path} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_engine_process_imports_nothing_of_the_front_end():
    """Its memory is for weights and KV: what HTTP, TLS and an event loop bring would stay in it as long as it runs."""
    banned = ("asyncio", "ssl", "urllib.request", "http.client", "fastapi", "pydantic", "jinja2", "tokenizers", "rich")
    code = f"import sys, sojourn.core.proc; print(*sorted(set({banned!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_the_rules_catch_a_violation():
    tree = ast.parse("from sojourn.core import scheduler\nimport torch\n")
    assert ours(tree) == {"core", "core.scheduler"}
    assert "core" not in ALLOWED["frontend"]
    assert "torch" in imported(tree) & FORBIDDEN
