"""X10: processes with different files, as they start and stop in a rolling upgrade.

Everything is real but time: the reporters and the recorder are those of processes, on one Postgres.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.upkeep_steps import SETTLE_SECONDS, SettingRecorder
from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.permit import Undecided
from headrace.compactor.retention import Retention, RetentionMetrics
from headrace.compactor.sweeper import Sweeper
from headrace.config.cluster_values import NEEDED_TO_DELETE
from headrace.config.settings import Settings
from headrace.jobs.lease import Lease
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.setting_reporter import SettingReporter
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from load.contexts import a_context
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import beat, claim, join, move_time, session, set_for_cluster

pytestmark = pytest.mark.requirement("X10")
LOOK_SECONDS = 5.0
HOUR = 3_600
RECORDS_AGE_HOURS = 400
"""Age of records in hours, between 168 (the default) and 720 (in the file of an operator who wants to keep more)."""


@dataclasses.dataclass
class UnequalFiles:
    """A cluster without values that has something to delete and to forget of every kind."""

    store: PostgresMetastore
    url: str
    clock: ManualClock
    scene: Scene
    orphan: str = ""
    bucket: MemoryStore = dataclasses.field(init=False)
    ahead: float = 0.0
    reporters: dict[str, SettingReporter] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bucket = MemoryStore(self.clock)
        self.recorder = SettingRecorder(self.store, self.clock)
        self.registry = CollectorRegistry()
        self.undecided = Undecided(self.registry)
        self.deletions = JanitorMetrics(self.registry, self.undecided)

    async def begin_process(self, name: str, node_id: int | None = None, **file: Any) -> None:
        self.reporters[name] = SettingReporter(
            a_context(self.store, self.clock, settings=Settings(**file), rng=random.Random(name)),
            ["broker", "controller", "compactor"],
            lambda: node_id,
        )

    async def end_process(self, name: str) -> None:
        await self.reporters.pop(name).stop()

    async def pass_seconds(self, seconds: float) -> None:
        """Processes report, the controller looks, background work does what it may."""
        lease = await self.store.controller.hold_controller_lease(1, uuid.UUID(int=1), 3_600_000)
        for _ in range(int(seconds / LOOK_SECONDS)):
            for reporter in self.reporters.values():
                await reporter.report()
            await self.recorder.record(lease.controller_epoch, await load_image(self.store.cluster), True)
            await self.clock.advance(LOOK_SECONDS)
            self.ahead += LOOK_SECONDS
            async with session(self.url) as raw:
                await move_time(raw, self.ahead)
        for kind, handler in (
            ("retention", Retention(self.store, RetentionMetrics(CollectorRegistry()), self.undecided)),
            ("delete", Janitor(self.store, self.bucket, self.deletions)),
            ("sweep", Sweeper(self.store, self.bucket, self.deletions)),
        ):
            job = await claim(self.store, kind)
            await handler(job, Lease(self.store.jobs, job, self.clock, claimed_at=0.0, lease_ms=60_000))
            await self.store.jobs.finish_job(job.token)
        await self.store.housekeeping.expire_producer_state(100)
        await self.store.housekeeping.expire_group_offsets(100)

    async def kept(self) -> dict[str, int]:
        """Counts of all that might be deleted or forgotten."""
        async with session(self.url) as raw:
            counts = {}
            for table in ("extents", "producer_state", "group_offsets", "segment_files"):
                (row,) = await (await raw.execute(f"SELECT count(*) FROM {table}".encode())).fetchall()
                counts[table] = row[0]
        return counts | {"objects": len([info async for info in self.bucket.list_objects("segments/")])}

    async def value(self, name: str) -> str | None:
        return (await self.store.cluster.cluster_configs()).get(name)


@pytest.fixture
async def cluster(metastore: PostgresMetastore, metastore_url: str, fake_clock: ManualClock) -> UnequalFiles:
    """Everything in it is RECORDS_AGE_HOURS old, and one file and one object are garbage."""
    for name in NEEDED_TO_DELETE:
        await set_for_cluster(metastore, name, None)
    scene = await open_scene(metastore, partitions=1)
    (key,) = scene.keys
    await scene.commit(file_of([batch(key, 0, producer=1_000, max_timestamp=-1)]))
    await scene.commit(file_of([batch(key, max_timestamp=-1)]))
    made = UnequalFiles(metastore, metastore_url, fake_clock, scene)
    for file_id in [new_file_id(1_000, random.Random(5))]:
        await made.bucket.put(object_key(file_id), b"orphan")
    agent = await join(metastore)
    claim = await metastore.groups.claim_group("readers", *agent)
    assert claim is not None
    assert await metastore.groups.commit_offsets("readers", claim.coordinator_epoch, [CommittedOffset(key, 1, -1, "")])
    await metastore.cluster.unregister_agent(*agent)
    await metastore.cluster.unregister_agent(*scene.agent)
    made.ahead = RECORDS_AGE_HOURS * HOUR
    async with session(metastore_url) as raw:
        await raw.execute("UPDATE segment_files SET dead_at = committed_at WHERE live_bytes = 0")
        await move_time(raw, made.ahead)
    return made


async def test_a_rolling_upgrade_with_unequal_files_deletes_nothing_until_they_agree(cluster: UnequalFiles) -> None:
    everything = await cluster.kept()
    old = await join(cluster.store)  # an agent of an older version: it serves, and reports nothing
    await cluster.begin_process("compactor-168")
    await cluster.pass_seconds(10 * SETTLE_SECONDS)
    assert await cluster.store.cluster.cluster_configs() == {}, "the old agent's file may say something else"
    assert await cluster.kept() == everything

    await beat(cluster.store, old)
    await cluster.store.cluster.unregister_agent(*old)
    await cluster.begin_process("agent-720", log_retention_hours=720, file_delete_delay_ms=86_400_000)
    await cluster.pass_seconds(10 * SETTLE_SECONDS)
    assert await cluster.value("log.retention.ms") is None
    assert await cluster.value("file.delete.delay.ms") is None
    assert await cluster.value("num.partitions") == "1", "what they agree on is recorded"
    kept = await cluster.kept()
    for table in ("extents", "segment_files", "objects"):
        assert kept[table] == everything[table], table
    waits = {"job": "retention", "setting": "log.retention.ms"}
    assert cluster.registry.get_sample_value("headrace_deletion_waits", waits) == 1
    waits = {"job": "delete", "setting": "file.delete.delay.ms"}
    assert cluster.registry.get_sample_value("headrace_deletion_waits", waits) == 1

    await cluster.end_process("compactor-168")
    await cluster.begin_process("compactor-720", log_retention_minutes=43_200, file_delete_delay_ms=86_400_000)
    await cluster.pass_seconds(SETTLE_SECONDS - LOOK_SECONDS)
    assert await cluster.value("log.retention.ms") is None
    await cluster.pass_seconds(2 * LOOK_SECONDS)
    assert await cluster.value("log.retention.ms") == str(720 * HOUR * 1_000)
    assert await cluster.value("file.delete.delay.ms") == "86400000"
    await cluster.pass_seconds(LOOK_SECONDS)
    kept = await cluster.kept()
    assert kept["extents"] == everything["extents"], "400 hours are less than 720"
    assert kept["objects"] == everything["objects"] - 1, "the orphan is older than a day"

    await set_for_cluster(cluster.store, "log.retention.ms", 168 * HOUR * 1_000)
    await cluster.pass_seconds(LOOK_SECONDS)
    assert (await cluster.kept())["extents"] == 0


async def test_a_value_that_was_set_stays_while_every_process_restarts_with_another_file(
    cluster: UnequalFiles,
) -> None:
    """Also for a worker that starts from a snapshot of the metadata log."""
    await set_for_cluster(cluster.store, "log.retention.ms", 720 * HOUR * 1_000)
    everything = await cluster.kept()
    image = await load_image(cluster.store.cluster)
    lease = await cluster.store.controller.hold_controller_lease(1, uuid.UUID(int=1), 3_600_000)
    await cluster.store.controller.save_snapshot(
        lease.controller_epoch, StoredSnapshot(image.offset, encode_snapshot(image))
    )
    for life in range(3):
        await cluster.begin_process(f"worker-{life}", log_retention_hours=1)
        await cluster.pass_seconds(2 * SETTLE_SECONDS)
        del cluster.reporters[f"worker-{life}"]  # it crashes: its report stays a minute
    assert await cluster.value("log.retention.ms") == str(720 * HOUR * 1_000)
    assert (await cluster.kept())["extents"] == everything["extents"]
