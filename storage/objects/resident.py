"""Reads of what the kernel holds of a file in memory, without waiting for a disk.

Place: under DirectoryStore.get_at_once, on the event loop.
Invariant: bytes are returned all or not at all, and nothing waits for them. A page that leaves memory afterwards does
no harm, because the bytes are copied: mapped memory costs as much (docs/understand/PERFORMANCE.md), and reading it
would end the process if the file became shorter or the disk failed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from headrace.storage.objects.store import ByteRange

_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
"""Linux only."""
_NO_ACCESS_TIME = getattr(os, "O_NOATIME", 0)


def can_read_resident(folder: Path) -> bool:
    """Return whether files in `folder` can be read so. Network file systems refuse it; opening their files may wait,
    too.
    """
    if not _NO_WAIT:
        return False
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"x")
            return os.preadv(file.fileno(), [bytearray(1)], 0, _NO_WAIT) == 1
    except OSError:
        return False


def read_resident(path: str, byte_range: ByteRange) -> memoryview | None:
    """The range; None if a part of it is not in memory, is behind the file's end, or cannot be read."""
    body = np.empty(byte_range.length, np.uint8).data  # unlike a bytearray, not zeroed before
    try:
        descriptor = _open(path)
        try:
            read = os.preadv(descriptor, [body], byte_range.start, _NO_WAIT)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return body.toreadonly() if read == byte_range.length else None


def _open(path: str) -> int:
    """Open a file without a note of the access, which can wait for the file system's journal; only a file's owner
    may do that.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | _NO_ACCESS_TIME)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
