"""From what a user calls a model to a path on this machine. Owns the rules of names; never opens the model.

    /abs, ./rel, ../rel, ~/x, *.gguf, anything that exists     a local path; the network is never touched
    smollm2:135m                                               a short name of the catalogue, pulled when it is missing
    org/name, org/name:Q4_K_M                                  a hub repository

Names come from the command line only: `model` in a request is compared with served names and never gets here.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from sojourn import env
from sojourn.errors import ModelNotFound
from sojourn.weights.catalogue import CATALOGUE
from sojourn.weights.download import Progress, silent
from sojourn.weights.hub import cached_repositories, cached_repository, fetch_repository
from sojourn.weights.pull import cache_target, cached_path, pull

__all__ = ["CachedModel", "Progress", "cached", "list_cached", "resolve"]

_REPOSITORY = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*?)(:(?P<quantization>[\w.-]+))?", re.ASCII)
_PATH_SUFFIXES = (".gguf", ".safetensors", ".bin", "/")
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")


@dataclass(frozen=True, slots=True)
class CachedModel:
    name: str
    path: Path
    size: int  # bytes


def resolve(name: str, *, progress: Progress | None = None) -> Path:
    """The file or directory of model `name`, fetched if it is not here yet.

    ModelNotFound: no such path, name or repository, or not in the cache while offline. StartupError: the download
    failed. Each is one line that says what to do.
    """
    path = _local_path(name)
    if path is not None:
        return path
    if name in CATALOGUE:
        model = CATALOGUE[name]
        found = cached_path(model)
        if found is None and env.offline():
            raise ModelNotFound(
                f"{name}: not in the cache {env.cache_dir()}, and SOJOURN_OFFLINE or HF_HUB_OFFLINE forbids the "
                f"network; run `sojourn pull {name}` without it"
            )
        return found or pull(model, progress or silent)
    match = _REPOSITORY.fullmatch(name)
    if match is None:
        raise ModelNotFound(_unknown(name))
    return fetch_repository(match["repository"], match["quantization"], progress or silent)


def cached(name: str) -> Path | None:
    """Where model `name` is, without fetching anything; None when it would have to be fetched.

    ModelNotFound: `name` is a path where nothing is, or no name at all.
    """
    path = _local_path(name)
    if path is not None:
        return path
    if name in CATALOGUE:
        return cached_path(CATALOGUE[name])
    match = _REPOSITORY.fullmatch(name)
    if match is None:
        raise ModelNotFound(_unknown(name))
    return cached_repository(match["repository"], match["quantization"])


def list_cached() -> list[CachedModel]:
    """Complete models, by what to call them: of the catalogue, the cache folder and the Hugging Face cache."""
    named = ((model, cached_path(model)) for model in CATALOGUE.values())
    found = [CachedModel(model.name, path, model.size) for model, path in named if path is not None]
    known = {cache_target(model) for model in CATALOGUE.values()}  # there, they are complete or not to be listed
    for path in sorted((env.cache_dir() / "models").glob("**/*.gguf")):
        if path not in known and path.is_file():
            found.append(CachedModel(str(path), path, path.stat().st_size))
    return found + [CachedModel(*item) for item in cached_repositories()]


def _local_path(name: str) -> Path | None:
    """A path that exists; None when `name` is no path. ModelNotFound: it can only be a path, and nothing is there."""
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, ValueError, RuntimeError) as error:  # a name no file system takes, or ~ of an unknown user
        raise ModelNotFound(f"{name[:100]}: not a path: {error}") from None
    if not name or name.startswith(_PATH_STARTS) or name.lower().endswith(_PATH_SUFFIXES) or name.count("/") > 1:
        raise ModelNotFound(f"{name or 'an empty name'}: no such file or directory")
    return None


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    return (
        f"{name}: neither a path, a hub repository (org/name), nor one of the short names {', '.join(CATALOGUE)}{hint}"
    )
