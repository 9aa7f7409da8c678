"""The active controller, and no other process, shows how old the backup is and which jobs no worker takes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from headrace.metastore.api.compaction import DamageKind, ListedDamage
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.read import Extent
from headrace.metastore.api.reports import JobCount
from headrace.metastore.backups import BackupKind, BackupRecord, WalArchive, record_backup
from headrace.metastore.upkeep_watch import LOOK_SECONDS, OVERDUE_SECONDS, UpkeepWatch
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.nouns import nouns

HOUR_MS = 3_600_000


class World:
    """A process that is the active controller, or not; the answers of its metastore."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.store, self.registry = clock, MemoryStore(clock), CollectorRegistry()
        self.is_active = True
        self.jobs: list[JobCount] = []
        self.values: dict[str, str] = {}
        self.error: UnavailableError | None = None
        self.looks = 0
        self.damaged: list[ListedDamage] = []
        self.watch = UpkeepWatch(nouns(self), self.store, HOUR_MS, lambda: self.is_active, clock, self.registry)

    async def wal_archive(self) -> WalArchive:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return WalArchive(False, None, False)

    async def count_jobs(self) -> list[JobCount]:
        return self.jobs

    async def cluster_configs(self) -> Mapping[str, str]:
        return self.values

    async def list_damage(self, limit: int) -> tuple[list[ListedDamage], int]:
        return self.damaged[:limit], len(self.damaged)

    async def look(self) -> tuple[str, ...]:
        await self.clock.advance(LOOK_SECONDS)
        return self.watch.warnings

    def overdue(self) -> float | None:
        return self.registry.get_sample_value("headrace_backup_overdue")

    def age(self, kind: str) -> float | None:
        return self.registry.get_sample_value("headrace_backup_age_seconds", {"kind": kind})


@pytest.fixture
async def world(fake_clock: ManualClock) -> AsyncIterator[World]:
    world = World(fake_clock)
    running = asyncio.create_task(world.watch.run())
    yield world
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_missing_backup_and_then_one_that_becomes_too_old(world: World) -> None:
    (warning,) = await world.look()
    assert warning.startswith("no backup of Postgres is recorded")
    assert (world.overdue(), world.age("none")) == (1, -1)
    await record_backup(world.store, BackupRecord(BackupKind.DUMP, world.clock.wall_ms()))
    assert await world.look() == ()
    assert (world.overdue(), world.age("dump"), world.age("none")) == (0, LOOK_SECONDS, None)
    world.clock.jump(HOUR_MS / 1000)
    (warning,) = await world.look()
    assert warning.startswith("a restore would go back 1.0 h, and file.delete.delay.ms is 1.0 h")
    assert world.overdue() == 1
    world.values["file.delete.delay.ms"] = str(2 * HOUR_MS)
    assert await world.look() == (), "the cluster's value counts, not the file's"


async def test_jobs_that_no_worker_takes(world: World) -> None:
    await record_backup(world.store, BackupRecord(BackupKind.DUMP, world.clock.wall_ms()))
    late_ms = int(OVERDUE_SECONDS * 1000) + 1
    world.jobs = [
        JobCount("plan", JobState.WAITING, 1, late_ms),
        JobCount("compact-large", JobState.WAITING, 1, late_ms),
        JobCount("retention", JobState.WAITING, 1, 10),
    ]
    assert await world.look() == ("background work is overdue, kind plan: 900 s",)


async def test_partitions_with_damage_are_counted_until_it_is_gone(world: World) -> None:
    await record_backup(world.store, BackupRecord(BackupKind.DUMP, world.clock.wall_ms()))
    extents = [Extent(key, base, base + 1, uuid.UUID(int=1), 16, 9, 0, 0) for key, base in ((1, 0), (1, 5), (2, 0))]
    world.damaged = [ListedDamage("t", 0, each, DamageKind.ALTERED, "why", 0, 1, 0, 0) for each in extents]
    assert await world.look() == ("damage in the bucket: partitions=2; headrace damage list names them",)
    assert world.registry.get_sample_value("headrace_damaged_partitions") == 2
    world.damaged = []
    assert await world.look() == ()
    assert world.registry.get_sample_value("headrace_damaged_partitions") == 0


async def test_a_process_that_is_not_the_active_controller_asks_and_shows_nothing(world: World) -> None:
    world.is_active = False
    assert await world.look() == ()
    assert (world.looks, world.overdue()) == (0, 0)
    world.is_active = True
    assert len(await world.look()) == 1
    world.is_active = False
    assert await world.look() == ()
    assert (world.overdue(), world.age("none")) == (0, None)


async def test_a_metastore_that_does_not_answer_leaves_what_was_found(world: World) -> None:
    before = await world.look()
    world.error = UnavailableError("no connection")
    assert await world.look() == before
