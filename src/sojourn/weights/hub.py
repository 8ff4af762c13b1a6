"""Brings a hub repository's model onto this machine through the hub's own client, whose cache owns the files.

Both clients are imported when used: they are slow to import, and ModelScope's is an extra.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn import env
from sojourn.errors import ModelNotFound, SojournError, StartupError
from sojourn.weights.download import Progress
from sojourn.weights.gguf_split import shard_paths
from sojourn.weights.hf_checkpoint import indexed_shards
from sojourn.weights.hub_files import choose_files, model_names

log = logging.getLogger(__name__)

Fetch = Callable[[str, str | None, Progress], Path]


def fetch_repository(repository: str, quantization: str | None, progress: Progress) -> Path:
    """Local path of the model in `repository`, `org/name`: a directory, or the GGUF file with `quantization` in it.

    A hub that cannot be asked is no obstacle, but a warning, when the model is in the client's cache.
    ModelNotFound: no such repository or file in it, or not in the cache while offline. StartupError: no network.
    """
    hubs: dict[str, Fetch] = {"huggingface": _from_huggingface, "modelscope": _from_modelscope}
    if env.hub() not in hubs:
        raise StartupError(f"SOJOURN_HUB is {env.hub()!r}; it can be {' or '.join(hubs)}")
    try:
        return hubs[env.hub()](repository, quantization, progress)
    except SojournError:
        raise
    except Exception as error:  # the clients raise their HTTP library's errors, a different one in each version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        path = cached_repository(repository, quantization) if env.hub() == "huggingface" else None
        if path is None:
            raise StartupError(f"{repository}: cannot be fetched: {reason}") from None
        log.warning("%s: using the copy in the cache, because the hub cannot be asked: %s", repository, reason)
        return path


def cached_repository(repository: str, quantization: str | None) -> Path | None:
    """As `fetch_repository`, from the Hugging Face cache only; None when it is not there, or not all of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, local_files_only=True))
        path = _model_path(folder, choose_files(repository, _files_below(folder), quantization))
    except (LocalEntryNotFoundError, ModelNotFound):
        return None
    weights = shard_paths(path) if path.is_file() else indexed_shards(path)
    return path if all(item.exists() for item in weights) else None


def cached_repositories() -> list[tuple[str, Path, int]]:
    """Name, path and bytes of every complete model in the Hugging Face cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = []
    for repository in sorted(repositories, key=lambda item: item.repo_id):
        revision = repository.refs.get("main") if repository.repo_type == "model" else None
        if revision is None:
            continue
        folder = revision.snapshot_path
        for name, files in model_names(repository.repo_id, _files_below(folder)).items():
            path = _model_path(folder, files)
            weights = shard_paths(path) if path.is_file() else indexed_shards(path)
            if all(item.exists() for item in weights):
                found.append((name, path, sum((folder / file).stat().st_size for file in files)))
    return found


def _files_below(folder: Path) -> list[str]:
    return [item.relative_to(folder).as_posix() for item in folder.rglob("*") if item.is_file()]


def _model_path(folder: Path, names: list[str]) -> Path:
    return folder / names[0] if names[0].endswith(".gguf") else folder


def _offline_error(repository: str) -> ModelNotFound:
    return ModelNotFound(
        f"{repository}: not in the hub cache, and SOJOURN_OFFLINE or HF_HUB_OFFLINE forbids the network; "
        "unset it, or give a local path"
    )


def _from_huggingface(repository: str, quantization: str | None, progress: Progress) -> Path:
    if env.offline():
        path = cached_repository(repository, quantization)
        if path is None:
            raise _offline_error(repository)
        return path
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(repository, files_metadata=True)
    except GatedRepoError:
        raise ModelNotFound(f"{repository}: gated; accept its licence on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelNotFound(f"{repository}: no such repository on the hub, or a private one (set HF_TOKEN)") from None
    sizes = {item.rfilename: item.size for item in info.siblings or []}
    names = choose_files(repository, sizes, quantization)
    paths = []
    for name in names:
        bar = _hub_bar(name, sizes[name], progress)
        paths.append(Path(hf_hub_download(repository, name, tqdm_class=bar)))
    return paths[0] if names[0].endswith(".gguf") else paths[0].parent


def _hub_bar(name: str, size: int | None, progress: Progress) -> Any:
    """A class the client uses in place of its own progress bar."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(  # type: ignore[no-untyped-call]
                *args, **{**kwargs, "disable": True}
            )
            self._done = int(kwargs.get("initial") or 0)
            progress(name, self._done, size)

        def update(self, n: float | None = 1) -> bool | None:
            self._done += int(n or 0)
            progress(name, self._done, size)
            return None

    return Bar


def _from_modelscope(repository: str, quantization: str | None, progress: Progress) -> Path:
    try:
        from modelscope.hub.api import HubApi
        from modelscope.hub.snapshot_download import snapshot_download
    except ImportError:
        raise StartupError(
            "SOJOURN_HUB is modelscope, but its client is missing: pip install 'sojourn[modelscope]'"
        ) from None
    if env.offline():
        try:
            folder = Path(snapshot_download(repository, local_files_only=True))
        except ValueError:
            raise _offline_error(repository) from None
        return _model_path(folder, choose_files(repository, _files_below(folder), quantization))
    listing = HubApi().get_model_files(repository, recursive=True)
    sizes = {item["Path"]: item.get("Size") for item in listing if item.get("Type") != "tree"}
    names = choose_files(repository, sizes, quantization)
    callback = _modelscope_bar(progress)
    folder = Path(snapshot_download(repository, allow_patterns=names, progress_callbacks=[callback]))
    return _model_path(folder, names)


def _modelscope_bar(progress: Progress) -> Any:
    class Bar:
        """The client makes one per file."""

        def __init__(self, filename: str, file_size: int) -> None:
            self._label, self._total, self._done = filename, file_size, 0

        def update(self, size: int) -> None:
            self._done += size
            progress(self._label, self._done, self._total)

        def end(self) -> None:
            progress(self._label, self._total, self._total)

    return Bar
