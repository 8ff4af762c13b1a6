"""A model file mapped into memory, read-only. Owns the mapping; never copies or parses what is in it.

Views keep the mapping alive, so nobody has to close it. Common mistakes (a missing file, an empty one, a Git LFS
pointer, a saved web page) are told here, before a parser calls them corrupt.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import BadModelFile, ModelNotFound

_HEAD_BYTES = 512


@dataclass(frozen=True, slots=True)
class MappedFile:
    path: Path
    content: mmap.mmap
    size: int

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` bytes from `offset` without copying. The caller has checked that they lie inside the file."""
        return np.frombuffer(self.content, dtype=np.uint8, count=nbytes, offset=offset)

    def release(self) -> None:
        """Let the pages read so far leave this process's memory. What is read again comes back from the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.content.madvise(mmap.MADV_DONTNEED)


def map_file(path: Path) -> MappedFile:
    """Map `path`. ModelNotFound: no such file. BadModelFile: not a file, empty, unreadable, or a Git LFS pointer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadModelFile(f"{path}: cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadModelFile(f"{path}: not a regular file")
        if status.st_size == 0:
            raise BadModelFile(f"{path}: the file is empty; the download or copy failed, fetch it again")
        content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadModelFile(f"{path}: cannot be mapped into memory: {error.strerror}") from None
    finally:
        os.close(descriptor)
    _refuse_pointer(path, content[:_HEAD_BYTES])
    return MappedFile(path, content, len(content))


def _refuse_pointer(path: Path, head: bytes) -> None:
    if head.startswith(b"version https://git-lfs"):
        raise BadModelFile(
            f"{path}: this is a Git LFS pointer, not the weights; run `git lfs pull` in its repository, "
            "or download the file itself"
        )


def guess_content(head: bytes) -> str:
    """What a file that begins with `head` looks like, as a noun for an error message."""
    start = head[:_HEAD_BYTES].lstrip()
    if start[:1] == b"<":
        return "a web page or XML, saved instead of the model"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive, or a PyTorch pickle"
    if start and all(byte >= 32 or byte in b"\t\n\r\f" for byte in head[:_HEAD_BYTES]):
        return "a text file"
    return "an unknown binary file"
