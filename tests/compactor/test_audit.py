"""The audit finds what is wrong and nothing else; an index is made again from the bucket alone."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.compactor.audit import Audit, Kind, audit
from headrace.compactor.permit import Mark, read_mark, write_mark
from headrace.config.settings import Settings
from headrace.metastore.api.reports import AuditedFile
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.directory import DirectoryStore
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.compactor.world import CompactionWorld
from tests.fixtures_clouds import ON_CLOUDS
from tests.metastore.sessions import delete, session
from tests.overlay import Overlay
from tests.storage.altered_reads import reads_of
from tests.storage.batches import BASE_TIME_MS, forge, plain_batch

HOUR_MS = 3_600_000


async def _audit(world: CompactionWorld, *, deep: bool = False, **over: Any) -> Audit:
    steps: list[tuple[str, int, int]] = []
    api: Any = over.pop("api", world.postgres)
    found = await audit(api, reads_of(world.store), deep=deep, on_progress=lambda *step: steps.append(step), **over)
    assert all(done <= total or not total for _, done, total in steps)
    return found


async def _kinds(world: CompactionWorld, *, deep: bool = False) -> list[Kind]:
    return [violation.kind for violation in (await _audit(world, deep=deep)).violations]


async def _fill(world: CompactionWorld, files: int = 4) -> list[int]:
    """Files of two partitions with dead batches between the live ones; their partition keys."""
    a, b = await world.topic("t", 2)
    for n in range(files):
        dead = plain_batch(2, b"dead" * 20, **NEVER_SEEN)
        await world.commit((a, plain_batch(3, b"a%d" % n * 20)), (a, dead), (a, plain_batch(1)), (b, plain_batch(2)))
    return [a, b]


async def _first_key(world: CompactionWorld) -> str:
    return object_key((await world.live_files())[0])


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
@pytest.mark.parametrize("deep", [False, True])
async def test_a_sound_cluster_at_every_level(world: CompactionWorld, *, deep: bool) -> None:
    await _fill(world)
    found = await _audit(world, deep=deep)
    assert (found.files, found.extents, found.objects, found.violations) == (4, 12, 4, [])
    assert found.amplification > 1
    assert found.dead_bytes == 4 * len(plain_batch(2, b"dead" * 20, **NEVER_SEEN))
    assert found.live_bytes + found.dead_bytes + found.overhead_bytes == found.object_bytes
    for level in (1, 2):
        await world.compact(level)
        found = await _audit(world, deep=deep)
        assert (found.files, found.violations) == (1, [])
        assert (found.dead_files, found.objects) == (3 + level, 4 + level)
        assert found.dead_bytes == 0, "what the commit dropped did not come along"
        assert found.reclaimable_bytes == found.dead_file_bytes > 0


async def test_a_deleted_topic_is_no_violation(world: CompactionWorld) -> None:
    await _fill(world)
    await delete(world.postgres, world.view.image.topics_by_name["t"].topic_id)
    assert await _kinds(world) == []
    while await world.postgres.housekeeping.purge_deleted_partitions(1000):
        pass
    found = await _audit(world)
    assert (found.files, found.dead_files, found.violations) == (0, 4, [])


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
async def test_a_missing_object(world: CompactionWorld) -> None:
    await _fill(world)
    await world.store.delete_many([await _first_key(world)])
    assert await _kinds(world) == [Kind.MISSING]


@pytest.mark.parametrize("deep", [False, True])
async def test_files_that_are_replaced_and_deleted_under_an_audit_are_no_violation(
    world: CompactionWorld, *, deep: bool
) -> None:
    await _fill(world)
    old = await world.live_files()

    listed = 0

    async def list_slowly(after: uuid.UUID, limit: int) -> list[AuditedFile]:
        """What it lists is gone by the time that it is looked at."""
        nonlocal listed
        page = await world.postgres.reports.audit_files(after, limit)
        listed += 1
        if listed == 1:
            await world.compact(1)
            await world.store.delete_many([object_key(file_id) for file_id in old])
        return page

    assert (await _audit(world, deep=deep, api=Overlay(world.postgres, audit_files=list_slowly))).violations == []
    assert listed > len(old), "each was asked for again"


def _flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda body: (
        body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if at >= 0 else _flipped(at + len(body))(body)
    )


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
@pytest.mark.parametrize(
    ("change", "shallow", "deep"),
    [
        (_flipped(-40), [Kind.UNSOUND], [Kind.UNSOUND]),  # the footer
        (_flipped(120), [], [Kind.DAMAGED]),  # a batch
        (lambda body: body[:-10], [Kind.UNSOUND], [Kind.UNSOUND]),
        (lambda body: body + b"more", [], [Kind.UNSOUND]),  # every byte that is named is there
        (lambda body: b"", [Kind.UNSOUND], [Kind.UNSOUND]),
    ],
)
async def test_an_altered_object(
    world: CompactionWorld, change: Callable[[bytes], bytes], shallow: list[Kind], deep: list[Kind]
) -> None:
    await _fill(world)
    key = await _first_key(world)
    await world.store.put(key, change(await world.store.get(key)))
    assert await _kinds(world) == shallow
    assert await _kinds(world, deep=True) == deep


async def test_another_files_bytes(world: CompactionWorld) -> None:
    """A sound segment file in the place of another."""
    await _fill(world)
    (c,) = await world.topic("other", 1)
    await world.commit((c, plain_batch(5)))
    first, *_, last = await world.live_files()
    body = await world.store.get(object_key(last))
    async with session(world.url) as raw:
        await raw.execute("UPDATE segment_files SET size = %s WHERE file_id = %s", (len(body), first))
    await world.store.put(object_key(first), body)
    assert set(await _kinds(world)) == {Kind.MISMATCH}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE extents SET last_offset = last_offset + 100 WHERE base_offset = 0", {Kind.MISMATCH}),
        ("UPDATE extents SET position = position + 1 WHERE base_offset = 0", {Kind.MISMATCH}),
        ("UPDATE extents SET length = length + 1000 WHERE base_offset = 0", {Kind.MISMATCH, Kind.MISCOUNTED}),
        ("UPDATE segment_files SET live_bytes = live_bytes - 1", {Kind.MISCOUNTED}),
        ("UPDATE segment_files SET dead_at = clock_timestamp()", {Kind.MISCOUNTED}),
        ("UPDATE segment_files SET state = 2", {Kind.MISMATCH}),
    ],
)
async def test_rows_with_wrong_values(world: CompactionWorld, sql: str, expected: set[Kind]) -> None:
    await _fill(world, files=1)
    async with session(world.url) as raw:
        await raw.execute(sql.encode())
    assert set(await _kinds(world, deep=True)) == expected


async def test_an_upload_under_way_is_no_violation(world: CompactionWorld) -> None:
    """Its row comes before its object; without its state it is a file that was counted wrongly."""
    await _fill(world, files=1)
    file_id = new_file_id(time.time_ns() // 1_000_000, world.rng, 1)
    async with session(world.url) as raw:
        await raw.execute(
            "INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at)"
            " VALUES (%s, 4, 1, 0, 0, 0, now())",
            (file_id,),
        )
    found = await _audit(world)
    assert (found.reserved, found.violations) == (1, [])
    async with session(world.url) as raw:
        await raw.execute("UPDATE segment_files SET state = 0 WHERE file_id = %s", (file_id,))
    assert await _kinds(world) == [Kind.MISCOUNTED]


@pytest.mark.parametrize("world", ["memory", *ON_CLOUDS], indirect=True)
async def test_unnamed_objects_are_a_violation_once_they_are_not_young(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of Azure or Google has several pages."""
    for module in ("azure", "google"):
        monkeypatch.setattr(f"headrace.storage.objects.{module}.PAGE_KEYS", 2)
    await _fill(world)
    now_ms = time.time_ns() // 1_000_000
    for age_ms in (0, HOUR_MS, 10 * HOUR_MS):
        await world.store.put(object_key(new_file_id(now_ms - age_ms, world.rng)), b"orphan")
    await world.store.put("segments/readme", b"foreign")
    found = await _audit(world)
    assert (found.unnamed, found.unnamed_bytes, found.foreign) == (3, 18, 1)
    assert [violation.kind for violation in found.violations] == [Kind.UNNAMED]


async def test_an_object_that_is_swept_between_list_and_question_is_no_violation(world: CompactionWorld) -> None:
    old = new_file_id(time.time_ns() // 1_000_000 - 10 * HOUR_MS, world.rng)
    await world.store.put(object_key(old), b"orphan")

    async def end_first(file_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """The janitor ends with the file, object and row, just before the metastore is asked for its name."""
        await world.store.delete_many([object_key(old)])
        return await world.postgres.files.unnamed_files(file_ids)

    assert (await _audit(world, api=Overlay(world.postgres, unnamed_files=end_first))).violations == []


@pytest.mark.parametrize(("delay_hours", "expected"), [(1, [Kind.UNNAMED]), (7, [Kind.UNNAMED]), (9, []), (24, [])])
async def test_recent_objects_need_no_row(world: CompactionWorld, delay_hours: int, expected: list[Kind]) -> None:
    old = new_file_id(time.time_ns() // 1_000_000 - 10 * HOUR_MS, world.rng)
    await world.store.put(object_key(old), b"orphan")
    found = await _audit(world, delete_delay_ms=delay_hours * HOUR_MS)
    assert [violation.kind for violation in found.violations] == expected


async def test_a_header_that_promises_a_later_time_than_its_records_have(world: CompactionWorld) -> None:
    """The first level copies headers and so the promise; the second opens records, and says what they hold."""
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        lie = forge(plain_batch(2), max_timestamp=BASE_TIME_MS * 2)
        await world.commit((key, lie), (key, plain_batch(3)))
    for level, expected in ((0, BASE_TIME_MS * 2), (1, BASE_TIME_MS * 2), (2, BASE_TIME_MS + 2)):
        if level:
            await world.compact(level)
        assert (await _audit(world, deep=True)).violations == []
        assert {extent.max_timestamp for extent in await world.extents(key)} == {expected}


async def test_a_header_that_promises_less_than_its_records_hold_stays_as_it_was_committed(
    world: CompactionWorld,
) -> None:
    """A block's highest time is never below its extents': look-ups would pass over what is in it."""
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        await world.commit((key, forge(plain_batch(5), max_timestamp=BASE_TIME_MS + 1)))
    for level in (1, 2):
        await world.compact(level)
        assert (await _audit(world, deep=True)).violations == []
        assert {extent.max_timestamp for extent in await world.extents(key)} == {BASE_TIME_MS + 1}


# -- the command


def test_the_command(metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = tmp_path / "bucket"
    flags = [f"--metastore-url={metastore_url}", f"--bucket=file://{bucket}"]

    async def prepare(mark: Mark | None) -> str:
        store = DirectoryStore(bucket, SystemClock())
        metastore = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
        await write_cluster_id(store, metastore.cluster_id)
        if mark is not None:
            await write_mark(store, mark)
        await metastore.close()
        return str(await read_mark(store))

    asyncio.run(prepare(None))
    assert main(["audit", *flags]) == 0
    assert "violations" in capsys.readouterr().out

    asyncio.run(prepare(Mark(uuid.UUID(int=5), 7)))
    assert main(["audit", "--json", *flags]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["violation_count"], shown["amplification"]) == (0, 0.0)
    assert "incarnation" in shown["janitor_stopped"]
    assert main(["audit", "--resume-janitor", *flags]) == 0
    assert "deletion is stopped" not in capsys.readouterr().out
    assert "generation=8" in asyncio.run(prepare(None))

    (bucket / "segments" / "00").mkdir(parents=True)
    old = uuid.UUID(int=(1_000_000_000_000 << 80) | (7 << 76) | (2 << 62))
    (bucket / object_key(old)).write_bytes(b"orphan")
    assert main(["audit", *flags]) == 1
    assert f"violation: unnamed file={old}" in capsys.readouterr().out
    assert main(["migrate", "--restored", f"--metastore-url={metastore_url}"]) == 1
    assert "bucket is not set" in capsys.readouterr().err
    assert main(["migrate", "--restored", *flags]) == 0
    assert "a new life of the metastore begins: life=1" in capsys.readouterr().out
    assert main(["audit", *flags]) == 1
    assert "deletion is stopped" in capsys.readouterr().out
