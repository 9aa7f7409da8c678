"""DirectoryStore: durability in order, leftovers, escapes, and what a file system's refusals mean."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from headrace.storage.objects.directory import INCOMPLETE, INCOMPLETE_MS_MAX, DirectoryStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "root"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root, SystemClock())


async def listed(store: DirectoryStore) -> list[str]:
    return [info.key async for info in store.list_objects()]


async def test_everything_is_synced_before_put_returns_and_in_order(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before it gets its name, each new folder's name, and the file's name last."""
    events: list[str] = []
    sync, replace = os.fsync, os.replace

    def recorded_sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append("file" if path.parent.name == INCOMPLETE else f"folder {path.relative_to(root)}")
        sync(descriptor)

    def recorded_replace(source: str, target: Path) -> None:
        events.append(f"name {target.relative_to(root)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    await store.put("a/b/k", b"x")
    assert events == ["file", "folder .", "folder a", "name a/b/k", "folder a/b"]
    events.clear()
    await store.put("a/b/l", b"x")
    assert events == ["file", "name a/b/l", "folder a/b"]
    events.clear()
    await store.delete_many(["a/b/k", "a/b/l", "a/none"])
    assert events == ["folder a/b"]


async def test_what_a_dead_writer_left_is_never_listed_and_removed_when_old(store: DirectoryStore, root: Path) -> None:
    now_s = SystemClock().wall_ms() / 1000
    old, young = root / INCOMPLETE / "old", root / INCOMPLETE / "young"
    for path, age_s in ((old, INCOMPLETE_MS_MAX / 1000 + 60), (young, INCOMPLETE_MS_MAX / 1000 - 60)):
        path.write_bytes(b"half")
        os.utime(path, (now_s - age_s, now_s - age_s))
    await store.put("k", b"x")
    assert await listed(store) == ["k"]
    again = DirectoryStore(root, SystemClock())
    assert await again.get("k") == b"x"
    assert [path.name for path in (root / INCOMPLETE).iterdir()] == ["young"], "its writer may be alive"


async def test_a_failed_put_leaves_nothing_behind(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(UnavailableError, match="no space left"):
        await store.put("k", b"x")
    assert await listed(store) == []
    assert list((root / INCOMPLETE).iterdir()) == []


async def test_a_name_that_may_not_last_is_in_doubt(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    sync = os.fsync

    def fail_second(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, "input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(OutcomeUnknownError):
        await store.put("k", b"x")
    await store.put("k", b"x")  # and may be repeated
    calls = 1
    with pytest.raises(OutcomeUnknownError):
        await store.delete_many(["k"])


async def test_the_folder_of_temporary_files_is_not_for_keys(store: DirectoryStore) -> None:
    with pytest.raises(InvalidError, match="reserved"):
        await store.put(f"{INCOMPLETE}/x", b"")
    with pytest.raises(InvalidError, match="reserved"):
        await store.get(f"{INCOMPLETE}/x")


async def test_a_key_is_not_another_keys_folder(store: DirectoryStore) -> None:
    """S3 allows both "a" and "a/b"; a directory cannot, and says so."""
    await store.put("a", b"x")
    with pytest.raises(InvalidError, match="another key is a prefix of this key"):
        await store.put("a/b", b"x")
    await store.put("c/d", b"x")
    with pytest.raises(InvalidError):
        await store.put("c", b"x")
    with pytest.raises(AlreadyExistsError):
        await store.put("c", b"x", if_absent=True)
    with pytest.raises(NotFoundError):
        await store.get("c")
    assert await store.delete_many(["c"]) == ["c"]
    assert await store.get("c/d") == b"x"


async def test_too_long_a_name_is_refused_finally(store: DirectoryStore) -> None:
    with pytest.raises(InvalidError, match="File name too long"):
        await store.put("n" * 300, b"x")


async def test_a_vanished_root_is_not_a_missing_object(store: DirectoryStore, root: Path) -> None:
    (root / INCOMPLETE).rmdir()
    with pytest.raises(UnavailableError):
        await store.put("k", b"x")


async def test_what_cannot_be_deleted_is_not_confirmed(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put("held", b"x")
    await store.put("free", b"x")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "held":
            raise PermissionError(errno.EPERM, "operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert await store.delete_many(["held", "free"]) == ["free"]
    assert "delete failed: key=held" in caplog.text


def test_a_root_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidError):
        DirectoryStore(tmp_path / "file" / "root", SystemClock())


async def test_listing_a_large_tree_in_any_shape_is_in_key_order(store: DirectoryStore) -> None:
    rng = random.Random(4)
    keys = {"/".join(rng.choices(["a", "a-", "a.", "b", "é", "B"], k=rng.randint(1, 4))) + f"{n}" for n in range(150)}
    for key in keys:
        await store.put(key, b"")
    assert await listed(store) == sorted(keys)
    for start_after in rng.sample(sorted(keys), 10):
        found = [info.key async for info in store.list_objects("a", start_after=start_after)]
        assert found == sorted(key for key in keys if key.startswith("a") and key > start_after)


def test_opening_is_not_disturbed_by_a_put_that_ends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process renames its temporary file after this one has listed it."""
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "renamed", *listed(folder)]))
    DirectoryStore(tmp_path / "root", SystemClock())
