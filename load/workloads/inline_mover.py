"""What moves inline files meanwhile: merges, retention, and housekeeping of an agent, on a thread.

Place: under load/benchmarks/inline_*.py, next to load/workloads/inline_agents.py. Planner, merges and swaps are the
compactor's, every compaction.interval.ms; each partition keeps the records of about `kept_s` seconds.
Invariant: nothing here deletes what is live. Objects go `forgotten_s` after they were stored, when retention has
removed all of their records, so that hours need no disk; rows of dead files stay, as for 75 minutes in a cluster.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from prometheus_client import CollectorRegistry

from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.config.settings import Settings
from headrace.jobs.kinds import COMPACT, PLAN_COMPACTION
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.api.agents import SEGMENT_KEYS
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.merging import MergingStore

ROUND_SECONDS = 5.0
HOUSE_SECONDS = 15.0
LEASE_MS = 600_000
TARGETS = 250
"""Log starts that one call moves."""


@dataclass
class MoverCounts:
    """Counts since the start."""

    jobs: int = 0
    seconds: float = 0.0
    """Time spent in jobs."""
    failures: int = 0


class InlineMover:
    """Works between entry and exit. `failure`: what ended it."""

    def __init__(self, url: str, bucket: Path, *, kept_s: float = 90.0, forgotten_s: float = 150.0) -> None:
        self._url, self._bucket, self._kept_s, self._forgotten_s = url, bucket, kept_s, forgotten_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover")
        self.moved = MoverCounts()
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # told by the thread that waits
            self.failure = error
            raise

    async def _work(self) -> None:
        store = await PostgresMetastore.open(self._url, Settings(metastore_pool_size=4))
        steps = (self._merging(store), partial(self._retain, store, deque()), partial(_keep_house, store))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._again_and_again(step)) for step in steps]
            await asyncio.to_thread(self._stop.wait)
            for task in running:
                task.cancel()
        await store.close()

    async def _again_and_again(self, step: Callable[[], Awaitable[float]]) -> None:
        """Call it, and wait for as many seconds as it says; what the metastore refuses is tried again."""
        while True:
            try:
                pause = await step()
            except HeadraceError:
                self.moved.failures += 1
                pause = 1.0
            await asyncio.sleep(pause)

    def _merging(self, store: PostgresMetastore) -> Callable[[], Awaitable[float]]:
        settings, clock, registry = Settings(), SystemClock(), CollectorRegistry()
        metrics, rng = CompactionMetrics(registry), random.Random(1)
        bucket = MergingStore(InlineStore(DirectoryStore(self._bucket, clock), store.inline))
        limits = MergeLimits(file_bytes=settings.compaction_file_bytes)
        handlers: dict[str, JobHandler] = {
            PLAN_COMPACTION.name: Planner(store, PolicyLimits.of(settings), metrics).handle,
            COMPACT.name: Compactor(bucket, store, store.commit_shards, limits, clock, rng, metrics).handle,
        }
        plan_at = clock.monotonic()

        async def merge() -> float:
            nonlocal plan_at
            began = clock.monotonic()
            if began >= plan_at:
                plan_at = began + settings.compaction_interval_ms / 1000
                await store.jobs.enqueue_jobs([PLAN_COMPACTION.once()])
            job = await store.jobs.claim_job("mover", list(handlers), LEASE_MS)
            if job is None:
                return 1.0
            try:
                lease = Lease(store.jobs, job, clock, claimed_at=began, lease_ms=LEASE_MS)
                await handlers[job.kind](job, lease)
            except HeadraceError as error:
                await store.jobs.fail_job(job.token, str(error), 1_000)
                raise
            await store.jobs.finish_job(job.token)
            if job.kind == COMPACT.name:
                self.moved.jobs += 1
                self.moved.seconds += clock.monotonic() - began
            return 0.0

        return merge

    async def _retain(self, store: PostgresMetastore, ends: deque[tuple[float, list[LogStartTarget]]]) -> float:
        """Move log starts to where the log ended `kept_s` ago."""
        async with store.pool.connection() as connection:
            heads = await connection.execute("SELECT partition_key, high_watermark FROM partition_heads")
            rows = await heads.fetchall()
        ends.append((time.monotonic(), [LogStartTarget(*row) for row in rows]))
        targets: list[LogStartTarget] = []
        while ends[0][0] < time.monotonic() - self._kept_s:
            targets = ends.popleft()[1]
        for first in range(0, len(targets), TARGETS):
            chunk = targets[first : first + TARGETS]
            while any(moved.has_more for moved in await store.retention.move_log_starts(chunk, max_extents=1_000)):
                pass
        await asyncio.to_thread(self._forget)
        return ROUND_SECONDS

    def _forget(self) -> None:
        before = time.time() - self._forgotten_s
        for path in self._bucket.glob("segments/*/*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()


def with_keys(url: str) -> None:
    """Let merged files have keys (decisions/0046), as in every new cluster."""
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO features VALUES (%s, 1, 1) ON CONFLICT DO NOTHING", (SEGMENT_KEYS,))


async def _keep_house(store: PostgresMetastore) -> float:
    house = store.housekeeping
    await house.rotate_log_slots()
    await house.expire_producer_state(1_000)
    await house.prune_removed_extents(1_000)
    await house.prune_jobs(1_000)
    return HOUSE_SECONDS
