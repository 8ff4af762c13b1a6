"""Sojourn: an LLM inference engine that accounts for the whole life of every request.

The offline classes are imported when first asked for, so that `sojourn --help` doesn't load NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sojourn.executor.model import Model
    from sojourn.llm import LLM, LLMEngine
    from sojourn.records import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "LLMEngine", "Model", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "sojourn.llm",
    "LLMEngine": "sojourn.llm",
    "Model": "sojourn.executor.model",
    "SamplingParams": "sojourn.records",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sojourn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
