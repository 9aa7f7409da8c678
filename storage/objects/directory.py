"""Objects as files in one local directory, for `file:///…`: demos, tests, a shared file system.

Place: under the decorators, instead of S3. The event loop reads only bytes that the kernel holds in memory
(get_at_once).
Invariant of reads without a disk: bytes are returned all or not at all, and nothing waits for them. A page that
leaves memory afterwards does no harm, because the bytes are copied: mapped memory costs as much
(docs/understand/PERFORMANCE.md), and reading it would end the process if the file became shorter or the disk failed.
Invariant: a file under its key's name is complete and durable. It is written and synced under a temporary name in
the same file system, then renamed (or linked, if the key must be free), then the folder is synced.
A crash during a put leaves only a temporary file, which is never listed and is removed at a later open when it is
old.
A key cannot also be the folder of another key ("a" and "a/b"): InvalidError.
Blocking calls run on asyncio's threads; a cancelled put may still take effect completely. Only what needs no disk is
read without a thread: bytes in the kernel's memory, of a file that was opened lately.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headrace.storage.clock import Clock
from headrace.storage.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from headrace.storage.objects.store import ByteRange, ObjectInfo, check_inside, check_key

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


INCOMPLETE = ".incomplete"
"""The folder of temporary files: no key may be in it."""

INCOMPLETE_MS_MAX = 3_600_000
"""A temporary file of this age has no writer any more."""

AT_ONCE_BYTES_MAX = 4 * 1024 * 1024
"""The event loop copies no more in one read: that takes less than a millisecond."""
OPENED_MAX = 4_096
"""Number of files that are remembered as opened lately; about 1 MB."""

_REFUSALS = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""Errors of the file system that a retry cannot fix. Others (no space, I/O error) may be temporary."""

logger = logging.getLogger(__name__)


class DirectoryStore:
    """Keys are paths below `root`, which is created if missing. Any number of processes may share it."""

    def __init__(self, root: Path, clock: Clock) -> None:
        """InvalidError if `root` cannot be created or written."""
        self._root = root
        self._incomplete = root / INCOMPLETE
        self._synced: set[Path] = set()
        self._opened: OrderedDict[str, None] = OrderedDict()
        """Keys of files that this process has written or read: to open them again needs no look at the disk."""
        with _translated("open", str(root)):
            self._incomplete.mkdir(parents=True, exist_ok=True)
            _remove_older_than(self._incomplete, clock.wall_ms() - INCOMPLETE_MS_MAX)
        self._reads_resident = can_read_resident(self._incomplete)

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        info = await asyncio.to_thread(self._put, key, self._path(key), body, if_absent)
        self._note_opened(key)
        return info

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        body = await asyncio.to_thread(self._get, key, self._path(key), byte_range)
        self._note_opened(key)
        return body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        if key not in self._opened or not self._reads_resident or byte_range.length > AT_ONCE_BYTES_MAX:
            return None
        return read_resident(f"{self._root}/{key}", byte_range)

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [await self.get(key, byte_range) for byte_range in ranges]

    async def head(self, key: str) -> ObjectInfo:
        return await asyncio.to_thread(self._head, key, self._path(key))

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        folders = [""]  # a stack of folders and keys still to list, the next in key order on top
        while folders:
            name = folders.pop()
            if name and not name.endswith("/"):
                if name.startswith(prefix) and name > start_after:
                    try:
                        yield await self.head(name)
                    except NotFoundError:
                        continue  # deleted after its folder was read
            elif _may_hold(name, prefix, start_after):
                folders += reversed(await asyncio.to_thread(self._names_in, name))

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        return await asyncio.to_thread(self._delete, {key: self._path(key) for key in keys})

    async def close(self) -> None:
        """Nothing to release."""

    def _note_opened(self, key: str) -> None:
        self._opened[key] = None
        self._opened.move_to_end(key)
        if len(self._opened) > OPENED_MAX:
            self._opened.popitem(last=False)

    def _path(self, key: str) -> Path:
        if check_key(key).startswith(INCOMPLETE + "/"):
            raise InvalidError(f"bad object key: key={key!r} reason=reserved for temporary files")
        return self._root / key

    def _put(self, key: str, path: Path, body: bytes | memoryview, if_absent: bool) -> ObjectInfo:
        with _translated("put", key):
            descriptor, name = tempfile.mkstemp(dir=self._incomplete)
            try:
                with open(descriptor, "wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                    info = _info(key, os.fstat(file.fileno()))
                self._make_folder(path.parent)
                if if_absent:
                    os.link(name, path)
                    os.unlink(name)
                else:
                    os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        _settle(path.parent)
        return info

    def _make_folder(self, folder: Path) -> None:
        """Create `folder` and its parents; each directory entry is synced."""
        if folder == self._root or folder in self._synced:
            return
        self._make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise InvalidError(f"bad object key: another key is a prefix of this key: folder={folder}") from error
        _sync_folder(folder.parent)
        self._synced.add(folder)

    def _get(self, key: str, path: Path, byte_range: ByteRange | None) -> bytes:
        with _translated("get", key), open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if byte_range is None:
                return file.read()
            check_inside(key, byte_range, size)
            return os.pread(file.fileno(), byte_range.length, byte_range.start)

    def _head(self, key: str, path: Path) -> ObjectInfo:
        with _translated("head", key):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError(f"no such object: key={key}")
        return _info(key, status)

    def _names_in(self, folder: str) -> list[str]:
        """Keys and subfolders (with a trailing "/") of a folder, in key order."""
        try:
            with _translated("list", folder), os.scandir(self._root / folder) as entries:
                names = [folder + entry.name + ("/" if entry.is_dir() else "") for entry in entries]
        except NotFoundError:
            return []
        return sorted(name for name in names if name != INCOMPLETE + "/")

    def _delete(self, paths: dict[str, Path]) -> list[str]:
        confirmed, folders = [], set()
        for key, path in paths.items():
            try:
                with _translated("delete", key):
                    path.unlink()
                folders.add(path.parent)
            except NotFoundError:
                pass  # a missing key counts as deleted
            except (InvalidError, UnavailableError) as error:
                logger.warning("delete failed: key=%s error=%s", key, error)
                continue
            confirmed.append(key)
        for folder in folders:
            _settle(folder)
        return confirmed


@contextmanager
def _translated(operation: str, key: str) -> Iterator[None]:
    """Convert errors of the file system to Headrace's errors."""
    try:
        yield
    except FileExistsError as error:
        raise AlreadyExistsError(f"object exists: key={key}") from error
    except OSError as error:
        if operation not in ("open", "put") and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise NotFoundError(f"no such object: key={key}") from error
        kind = InvalidError if error.errno in _REFUSALS else UnavailableError
        raise kind(f"{operation} failed: key={key} error={error}") from error


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        etag=f"{status.st_mtime_ns:x}-{status.st_size:x}",
    )


def _may_hold(folder: str, prefix: str, start_after: str) -> bool:
    """Return whether `folder` ("" or with a trailing "/") can contain a key with `prefix` and after `start_after`."""
    return (folder.startswith(prefix) or prefix.startswith(folder)) and (
        folder > start_after or start_after.startswith(folder)
    )


def _settle(folder: Path) -> None:
    """Make renames and removals in `folder` durable; OutcomeUnknownError if that may have failed."""
    try:
        _sync_folder(folder)
    except OSError as error:
        raise OutcomeUnknownError(f"change may not be durable: folder={folder} error={error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_older_than(folder: Path, limit_ms: int) -> None:
    for path in folder.iterdir():
        try:
            written_ms = path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:  # its writer has just finished
            continue
        if written_ms < limit_ms:
            path.unlink(missing_ok=True)
            logger.info("removed temporary file of an unfinished put: path=%s", path)
