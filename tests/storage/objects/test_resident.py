"""Reads of what is in the kernel's memory: whole ranges or nothing, and no file is opened for the first time."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.objects import directory
from headrace.storage.objects.directory import DirectoryStore, can_read_resident, read_resident
from headrace.storage.objects.store import ByteRange
from tests.patch import Patch

BODY = random.Random(5).randbytes(100_000)
ALL = ByteRange(0, len(BODY))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """Store on any file system: the kernel is asked without the flag that not all of them know."""
    monkeypatch.setattr(directory, "can_read_resident", lambda folder: True)
    monkeypatch.setattr(directory, "_NO_WAIT", 0)
    return DirectoryStore(tmp_path, SystemClock())


async def test_a_file_is_read_at_once_when_this_process_has_opened_it(store: DirectoryStore, tmp_path: Path) -> None:
    await store.put("a/k", BODY)
    assert store.get_at_once("a/k", ByteRange(500, 70_000)) == BODY[500:70_500]
    again = DirectoryStore(tmp_path, SystemClock())
    assert again.get_at_once("a/k", ALL) is None, "to open it may need the disk"
    await again.get("a/k", ByteRange(0, 1))
    assert again.get_at_once("a/k", ALL) == BODY


async def test_only_the_files_opened_last_are_remembered(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "OPENED_MAX", 2)
    for key in ("a", "b"):
        await store.put(key, BODY)
    await store.get("a", ByteRange(0, 1))
    await store.put("c", BODY)
    assert [store.get_at_once(key, ALL) is not None for key in "abc"] == [True, False, True]


async def test_a_long_range_does_not_keep_the_event_loop(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "AT_ONCE_BYTES_MAX", 1000)
    await store.put("k", BODY)
    assert store.get_at_once("k", ByteRange(0, 1000)) == BODY[:1000]
    assert store.get_at_once("k", ByteRange(0, 1001)) is None


def refuse(code: int) -> Callable[..., int]:
    def preadv(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    return preadv


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EIO, errno.ESTALE])
async def test_what_is_not_in_memory_or_cannot_be_read_is_left_to_get(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    await store.put("k", BODY)
    opened = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "preadv", refuse(code))
    assert store.get_at_once("k", ALL) is None
    assert len(os.listdir("/proc/self/fd")) == opened


def partly(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
    """The same as the kernel does if only the beginning is in memory."""
    piece = os.pread(descriptor, len(buffers[0]) // 2, offset)
    buffers[0][: len(piece)] = piece
    return len(piece)


async def test_a_part_of_a_range_is_nothing(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("k", BODY)
    monkeypatch.setattr(os, "preadv", partly)
    assert store.get_at_once("k", ALL) is None


async def test_a_planted_bug_is_caught(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, patch: Patch) -> None:
    """Planted: all that was read is returned, as if the kernel never stopped early."""

    def trusting(path: str, byte_range: ByteRange) -> memoryview:
        body = bytearray(byte_range.length)
        with open(path, "rb") as file:
            os.preadv(file.fileno(), [body], byte_range.start, 0)
        return memoryview(body)

    patch.replace(directory, "read_resident", trusting)
    with pytest.raises(AssertionError):
        await test_a_part_of_a_range_is_nothing(store, monkeypatch)


def test_a_file_system_that_cannot_say_what_is_in_memory_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", refuse(errno.EOPNOTSUPP))
    assert not can_read_resident(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(directory, "_NO_WAIT", 0)
    assert not can_read_resident(tmp_path), "not Linux"
    assert not can_read_resident(tmp_path / "absent")


def test_a_file_that_is_shorter_or_gone_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(BODY)
    assert read_resident(str(tmp_path / "k"), ByteRange(99_000, 1001)) is None
    assert read_resident(str(tmp_path / "absent"), ByteRange(0, 1)) is None
