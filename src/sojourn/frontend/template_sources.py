"""Where a model's chat templates are: files of a Hugging Face directory, keys of a GGUF file. Compiles none.

A model may have several by name; "default" is for every chat, "tool_use" for those with tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn.errors import BadModelFile, StartupError
from sojourn.frontend.hf_tokenizer import read_json


def read_template(path: Path) -> str:
    """Raises StartupError if the file can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"can't read the chat template {path}: {error}") from error


def directory_sources(directory: Path) -> dict[str, str]:
    """Where Hugging Face keeps templates, the newest place first."""
    if (path := directory / "chat_template.jinja").is_file():
        sources = {"default": read_template(path)}
        if (extra := directory / "additional_chat_templates" / "tool_use.jinja").is_file():
            sources["tool_use"] = read_template(extra)
        return sources
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (value := read_json(directory / name).get("chat_template")) is not None:
            return _named_sources(value, directory / name)
    return {}


def _named_sources(value: Any, path: Path) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError) as error:
        raise BadModelFile(f"{path}: chat_template is neither text nor a list of named templates") from error


def metadata_sources(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Where GGUF files keep them."""
    keys = {"default": "tokenizer.chat_template", "tool_use": "tokenizer.chat_template.tool_use"}
    return {name: metadata[key] for name, key in keys.items() if metadata.get(key)}
