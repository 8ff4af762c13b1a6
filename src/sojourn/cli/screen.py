"""The start-up screen: what was settled while loading, and where to call. Formats only; prints once."""

from __future__ import annotations

from sojourn import __version__, machine
from sojourn.cli.columns import columns
from sojourn.cli.options import Settings
from sojourn.records import EngineInfo


def startup_screen(info: EngineInfo, settings: Settings, url: str) -> str:
    """One screen of text, a line per fact."""
    model = settings.engine.model
    blocks = f"{info.num_kv_blocks} blocks of {info.block_size} tokens"
    names = settings.frontend.served_model_name
    served = f", served as {', '.join(names)}" if names else ""
    reason = "--threads" if settings.engine.threads else machine.usable_threads()[1]
    where = "this process" if settings.server.in_process else "its own process"
    keys = "needed" if settings.server.api_key else "not needed"
    rows = [
        ("model", f"{model} ({info.architecture}, {info.num_parameters / 1e6:.0f}M parameters){served}"),
        ("weights", f"{info.quantization}, {size(info.weight_bytes)} in memory"),
        ("context", f"{info.max_model_len} tokens ({info.max_model_len_reason})"),
        ("KV memory", f"{size(info.kv_bytes)}: {blocks} in {info.kv_dtype}"),
        ("compute", f"{info.backend}, {info.threads} {'thread' if info.threads == 1 else 'threads'} ({reason})"),
        ("ISA", info.isa),
        ("loaded in", f"{info.load_seconds:.1f} s, engine in {where}"),
        ("API", f"{url}/v1, key {keys}"),
        ("API page", f"{url}/docs"),
        ("page", f"{url}/ (requests, steps, KV blocks, live)"),
    ]
    return f"Sojourn {__version__}\n" + columns([("", *row) for row in rows])


def size(count: int) -> str:
    """Bytes for people: "98 MB", "1.2 GiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 1e6:.0f} MB"
