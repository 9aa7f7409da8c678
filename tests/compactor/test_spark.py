"""Compaction on Spark, in local mode, against a real Postgres and a directory as bucket.

Drivers that are killed leave no record twice and lose none; tests/spark/test_compaction.py compares with the local
worker. Needs Java 17 and pyspark, and skips without them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor import sweeper
from headrace.compactor.janitor import JanitorMetrics
from headrace.compactor.permit import Undecided
from headrace.compactor.plan import CompactionJob, PartitionPlan, Plan, encode
from headrace.config.settings import Settings
from headrace.jobs.kinds import COMPACT_LARGE, SWEEP_ORPHANS
from headrace.jobs.runner import JobMetrics, JobRunner, RunnerTerms
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.read import Extent
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import random_cluster_id, write_cluster_id
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import SEGMENTS, new_file_id, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.supervision import Supervisor
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.compactor.leftovers import end_leftovers
from tests.compactor.test_compact import batch
from tests.compactor.test_resume_janitor import supersede
from tests.compactor.world import LEASE_MS, CompactionWorld
from tests.fixtures_clouds import ON_CLOUDS, CloudBucket, azurite_url, bucket_of, fake_gcs_url
from tests.fixtures_s3 import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import move_time, rows, session
from tests.storage.batches import plain_batch

pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
pytestmark = [
    pytest.mark.needs("java"),
]

from pyspark.sql.datasource import InputPartition  # noqa: E402

from headrace.compactor.spark.application import work  # noqa: E402
from headrace.compactor.spark.driver import tasks_at_a_time  # noqa: E402
from headrace.compactor.spark.parts import split  # noqa: E402
from headrace.compactor.spark.source import PlanReader, Task  # noqa: E402

__all__ = ["azurite_url", "fake_gcs_url"]
REPOSITORY = Path(__file__).parents[2]
SPARK_SECONDS = 300
SWEPT_SECONDS = 2 * sweeper.MIN_AGE_MS / 1000
"""Every orphan of a test is old enough then."""
DRIVER_LEASE_SECONDS = 600
"""Far longer than any pause of the machine; the test moves the clock past it."""


class HasEnvironment(Protocol):
    """A world for the application."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment of its driver and executors."""


class SparkWorld(CompactionWorld):
    """A bucket that Spark's own processes reach too."""

    def __init__(self, metastore: PostgresMetastore, url: str, bucket: Path, cloud: CloudBucket | None = None) -> None:
        super().__init__(metastore, url)
        self.bucket = bucket
        self._place = {"HEADRACE_BUCKET": bucket.as_uri()} if cloud is None else cloud.environment
        self.store = DirectoryStore(bucket, SystemClock()) if cloud is None else cloud.open()  # type: ignore[assignment]
        self.service = self.new_service()

    @property
    def environment(self) -> dict[str, str]:
        """Environment for Spark's driver and executors."""
        return {
            "HEADRACE_METASTORE_URL": self.url,
            **self._place,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    async def fill(self, name: str) -> list[int]:
        """Six files of a topic: small batches, dead ones between them, one codec recompressed, one kept."""
        kept = await self.topic(f"{name}-kept", 3)
        packed = await self.topic(f"{name}-packed", 1, compression_type="zstd")
        dead = plain_batch(2, b"dead" * 50, **NEVER_SEEN)
        for number in range(6):
            value = b"value-%d " % number * 30
            await self.commit(
                *((key, data) for key in kept + packed for data in (batch(value, 3), dead, batch(value, 1)))
            )
        return kept + packed

    async def enqueue(self, keys: list[int]) -> None:
        """One large job over all files that hold something of these partitions."""
        files = sorted({extent.file_id for extent in await self.extents(*keys)})
        job = CompactionJob(tuple(files), 2, is_large=True)
        await self.postgres.jobs.enqueue_jobs([COMPACT_LARGE.once(str(uuid.uuid4()), encode(job))])

    async def claim_large(self) -> Job:
        job = await self.postgres.jobs.claim_job("test", [COMPACT_LARGE.name], LEASE_MS)
        assert job is not None
        return job

    async def objects(self) -> set[str]:
        """Keys of all segment files in the bucket."""
        return {info.key async for info in self.store.list_objects(SEGMENTS)}

    async def named(self) -> set[str]:
        """Keys of the files that have a row and are not condemned."""
        rows = await self.file_rows()
        return {object_key(file_id) for file_id, row in rows.items() if row["state"] != FileState.CONDEMNED}

    async def sweep(self, ahead_seconds: float) -> None:
        """Let the metastore's clock be so far ahead, let cleanup and janitor run, and sweep the bucket once."""
        await end_leftovers(self, ahead_seconds)
        metrics = JanitorMetrics(CollectorRegistry(), Undecided(CollectorRegistry()))
        await self.run_job(SWEEP_ORPHANS.name, sweeper.Sweeper(self.postgres, self.store, metrics))


def s3_environment(server: str, prefix: str) -> dict[str, str]:
    """Settings of a bucket on the server."""
    return {
        "HEADRACE_BUCKET": f"s3://{BUCKET}/{prefix}",
        "HEADRACE_S3_ENDPOINT": server,
        "HEADRACE_S3_REGION": "us-east-1",
        "HEADRACE_S3_PATH_STYLE": "true",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SparkWorld]:
    """Yields a world with its bucket in a directory, or on the emulator that an indirect parameter names."""
    with_keys(metastore_url)
    cloud = getattr(request, "param", "directory")
    world = SparkWorld(metastore, metastore_url, tmp_path, None if cloud == "directory" else bucket_of(cloud, request))
    await world.begin()
    await write_cluster_id(world.store, metastore.cluster_id)
    yield world
    await world.service.close()
    await world.store.close()


@pytest.mark.slow
@pytest.mark.requirement("W10")
async def test_a_driver_killed_before_its_commit_leaves_the_job_to_others(world: SparkWorld) -> None:
    keys = await world.fill("t")
    before = [await world.records(key) for key in keys]
    stored_before = await world.objects()
    await world.enqueue(keys)

    with psycopg.connect(world.url) as blocker:  # the swap waits for this
        blocker.execute("SELECT FROM partitions FOR UPDATE")
        driver = spark_submit(world, "--lease-ms", str(DRIVER_LEASE_SECONDS * 1000))
        try:
            await until_swapping(world, driver)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        blocker.rollback()
    async with session(world.url) as clock:
        await move_time(clock, 2 * DRIVER_LEASE_SECONDS)
    assert await world.objects() - stored_before, "it had stored files"
    assert [await world.records(key) for key in keys] == before

    compactor = world.compactor()
    metrics = JobMetrics(world.clock, CollectorRegistry())
    runner = JobRunner(
        world.postgres.jobs,
        {COMPACT_LARGE.name: compactor.handle},
        RunnerTerms("local"),
        world.clock,
        world.rng,
        metrics,
        Supervisor(world.clock),
    )
    async with asyncio.timeout(SPARK_SECONDS):
        while not await done(world):
            await runner.drain()
            await asyncio.sleep(0.2)
    assert [await world.records(key) for key in keys] == before
    assert {(await world.file_rows())[file_id]["level"] for file_id in await world.live_files()} == {2}
    await world.check_accounts()

    await world.sweep(2 * DRIVER_LEASE_SECONDS + SWEPT_SECONDS)
    assert await world.objects() == await world.named(), "what the killed driver had stored is gone, or named"
    assert [await world.records(key) for key in keys] == before


@pytest.mark.slow
@pytest.mark.parametrize("world", ["directory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("W10")
async def test_the_application_ends_when_no_job_is_left(world: SparkWorld) -> None:
    keys = await world.fill("t")
    before = [await world.records(key) for key in keys]
    await world.enqueue(keys)
    driver = spark_submit(world)
    output, _ = await asyncio.to_thread(driver.communicate, timeout=SPARK_SECONDS)
    assert driver.returncode == 0, output.decode()
    assert [await world.records(key) for key in keys] == before
    assert [len(await world.extents(key)) for key in keys] == [1] * len(keys)
    assert await done(world)
    assert world.url.encode() not in output, "nothing secret is logged"
    lines = output.decode().splitlines()
    summary = "compaction on spark ended: jobs_done=1 jobs_failed=0 merged_files=6 cleaned_partitions=0 seconds="
    assert any(line.startswith(summary) for line in lines), output.decode()
    began = next(number for number, line in enumerate(lines) if "job started" in line)
    assert not [line for line in lines[began:] if " INFO " in line and "headrace" not in line], "only its own"

    orphan = object_key(new_file_id(1, world.rng))
    await world.store.put(orphan, b"named by no row")
    await world.sweep(SWEPT_SECONDS)
    assert await world.objects() == await world.named()
    assert [await world.records(key) for key in keys] == before


@pytest.mark.slow
async def test_spark_is_not_started_when_no_job_is_due(world: SparkWorld) -> None:
    driver = spark_submit(world)
    output, _ = await asyncio.to_thread(driver.communicate, timeout=SPARK_SECONDS)
    assert (driver.returncode, b"spark is not started" in output) == (0, True), output.decode()
    assert b"SparkContext" not in output


@pytest.mark.slow
async def test_the_application_refuses_another_clusters_bucket(world: SparkWorld) -> None:
    """It would take every input for lost."""
    (world.bucket / "cluster.properties").unlink()
    await write_cluster_id(world.store, random_cluster_id(random.Random(1)))
    await world.enqueue(await world.fill("t"))
    driver = spark_submit(world)
    output, _ = await asyncio.to_thread(driver.communicate, timeout=SPARK_SECONDS)
    assert (driver.returncode, b"belong to different clusters" in output) == (1, True), output.decode()
    assert not await done(world)


def spark_submit(world: HasEnvironment, *arguments: str) -> subprocess.Popen[bytes]:
    """The application as a CronJob starts it, in a separate process group."""
    submit = Path(sys.executable).parent / "spark-submit"
    return subprocess.Popen(
        [
            str(submit), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.driver.bindAddress=127.0.0.1", "compactor/spark/application.py", *arguments,
        ],
        env={**os.environ, **world.environment}, cwd=REPOSITORY, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


async def until_swapping(world: CompactionWorld, driver: subprocess.Popen[bytes]) -> None:
    """Wait until the driver's commit waits for a lock."""
    async with session(world.url) as connection, asyncio.timeout(SPARK_SECONDS):
        while not await rows(
            connection,
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'swap_(cleaned_)?extents'"
            " AND datname = current_database()",
        ):
            assert driver.poll() is None, driver.communicate()[0].decode()
            await asyncio.sleep(0.1)


def end_waiting_swaps(blocker: psycopg.Connection) -> None:
    """Postgres would otherwise complete a statement that waits, for a client that is gone."""
    blocker.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND query ~ 'swap_(cleaned_)?extents' AND datname = current_database()"
    )


async def done(world: SparkWorld) -> bool:
    """Return whether no job waits or runs."""
    return await world.postgres.compaction.unfinished_payloads(COMPACT_LARGE.name) == [[]]


@pytest.mark.parametrize(
    ("conf", "tasks"),
    [
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ({"spark.executor.instances": "3"}, 3),
        ({}, 5),
    ],
)
def test_a_tasks_share_depends_on_the_requested_executors(conf: dict[str, str], tasks: int) -> None:
    """They may not all be up when the job begins."""
    context = SimpleNamespace(getConf=lambda: conf, defaultParallelism=5)
    assert tasks_at_a_time(SimpleNamespace(sparkContext=context)) == tasks  # type: ignore[arg-type]


def test_parts_keep_partitions_whole_and_in_order() -> None:
    plan = Plan(2, 0, tuple(_partition(number, size) for number, size in enumerate([10, 10, 25, 3, 3, 3])))
    parts = split(plan, 20)
    assert [[partition.partition_index for partition in part.partitions] for part in parts] == [[0, 1], [2], [3, 4, 5]]
    assert split(Plan(2, 0, ()), 20) == []


def test_a_plan_of_nothing_is_no_row() -> None:
    """All that a job was to merge may have expired before it began; Spark then makes up a partition without a value."""
    reader = PlanReader(Task(1, 1, "", 20, 20, 20, 1.0, 1.0, 2))
    assert list(reader.read(InputPartition("part"))) == [("part",)]
    assert list(reader.read(InputPartition(None))) == []


def _partition(number: int, size: int) -> PartitionPlan:
    extent = Extent(number, 0, 0, uuid.UUID(int=number), 0, size, 0, 0)
    return PartitionPlan(number, uuid.UUID(int=1), number, None, (extent,))


async def test_a_driver_takes_no_job_from_an_old_primary(world: CompactionWorld, tmp_path: Path) -> None:
    bucket = DirectoryStore(tmp_path / "bucket", SystemClock())
    await write_cluster_id(bucket, world.postgres.cluster_id)
    await LifeKeeper(world.postgres.life, bucket, SystemClock(), random.Random(1)).begin_anew("restored")
    settings = Settings(metastore_url=world.url, bucket=(tmp_path / "bucket").as_uri())
    given = {"part_bytes": 1, "lease_ms": LEASE_MS, "spark_log_level": "ERROR"}
    assert not (await work(settings, **given)).done, "no large job is due"  # type: ignore[arg-type]
    await supersede(bucket)
    with pytest.raises(UnavailableError, match="another server is the metastore"):
        await work(settings, **given)  # type: ignore[arg-type]
