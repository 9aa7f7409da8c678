"""A process's background work: its job kinds, their handlers, their speed.

Place: composed by cli: alone (`headrace compactor`) or in the same process as an agent. The number of parallel jobs
and the byte rate can be changed at run time, by a task next to the job loop.
Invariant of the pace: a cluster-wide broker config takes effect on every worker, whether it is a broker or not,
within LOOK_SECONDS of the change; next to an agent or a controller, of the record in its image. One of an agent
takes effect on the worker in its process only. Running jobs are finished. While the metastore is unavailable the
last known pace applies.
Source: KIP-226, Kafka's DynamicBrokerConfig (log cleaner).
Invariant: it has a separate, throttled connection to the bucket, and separate connections to the metastore, so that
background work takes no connection that producers or readers wait for. `stop` gives jobs the grace period to finish,
then returns them to the queue. If the process crashes, its leases expire and other workers continue.
All steps that a merge moves to a thread (opening, checking, merging and compressing records, laying files out) run
on CpuShare: a step that used t seconds of CPU is followed by a pause of t x (100 / percent - 1) seconds before its
result is returned, so each job uses about `percent` of one core, and all results are the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.planner import CleaningPlanner
from headrace.compactor.cleaning.policy import SparkLimits
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.links.copy_job import LinkCopier, SourceOpener
from headrace.compactor.links.discovery import LinkTopics
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.planning import LinkPlanner
from headrace.compactor.merge import MergeLimits
from headrace.compactor.outcomes import OutcomeJob
from headrace.compactor.permit import Undecided
from headrace.compactor.planner import Planner, PolicyLimits, ScanPlace
from headrace.compactor.retention import Retention, RetentionMetrics
from headrace.compactor.segments import AuditArchiveMetrics, AuditArchiver, SegmentCleanup, SegmentCleanupMetrics
from headrace.compactor.sweeper import Sweeper
from headrace.config.settings import Settings
from headrace.jobs.kinds import (
    ARCHIVE_AUDIT,
    ARCHIVE_AUDIT_ROWS,
    CLEAN,
    CLEAN_UP_SEGMENTS,
    COMPACT,
    DELETE_DEAD_FILES,
    LINK_COPY,
    LINK_TOPICS,
    PLAN_CLEANING,
    PLAN_COMPACTION,
    PLAN_LINKS,
    RECORD_OUTCOMES,
    RETENTION,
    SWEEP_ORPHANS,
    JobKind,
)
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler, JobMetrics, JobRunner, RunnerTerms, no_agent
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.jobs import Job
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.log.effective_configs import EffectiveConfigs, read_settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.throttled import ThrottledStore
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0

SaidHere = Callable[[], Mapping[str, str] | None]
"""The broker configs in the image of this process's agent or controller; None if there is no such image, or not yet."""


def no_image() -> None:
    """The configs in a process without agent and controller."""


class Pace(NamedTuple):
    """compactor.threads, compactor.io.max.bytes.per.second, log.cleaner.io.max.bytes.per.second."""

    jobs: int
    bytes_per_s: int
    cleaning_bytes_per_s: int


def pace(configs: EffectiveConfigs, said: Mapping[str, str]) -> Pace:
    """`said`: broker configs that are set; this process's settings apply where there is none."""
    return Pace(
        int(configs.cluster_value(said, "compactor.threads")),
        int(configs.cluster_value(said, "compactor.io.max.bytes.per.second")),
        int(configs.cluster_value(said, "log.cleaner.io.max.bytes.per.second")),
    )


async def follow_pace(
    api: ClusterApi,
    configs: EffectiveConfigs,
    clock: Clock,
    change: Callable[[Pace], Awaitable[None]],
    said_here: SaidHere = no_image,
) -> None:
    """Never returns: calls `change` with each new pace, first if the pace is not that of the settings. The metastore is
    asked only if this process has no image."""
    known = pace(configs, {})
    while True:
        try:
            said = said_here()
            wanted = pace(configs, await api.cluster_configs() if said is None else said)
            if wanted != known:
                await change(wanted)
                known = wanted
                logger.info("pace of background work changed: jobs=%d bytes_per_s=%d cleaning_bytes_per_s=%d", *wanted)
        except HeadraceError as error:
            logger.warning("cannot read pace of background work: error=%s", error)
        await clock.sleep(LOOK_SECONDS)


REQUESTS_PER_S = 500
"""Far below the limits of a bucket, so that background work never causes throttling of producers."""
ALL_OF_A_CORE = 100
LINK_LEASE_MS = 12_000
"""Shorter than of other jobs: copies fall behind, and groups wait, until the jobs of a killed worker are free."""
LINK_REQUESTS_MAX = 32
"""Requests to sources that are under way at a time, each on a thread."""
LINK_LOOKS = 2
"""Jobs that plan for links and find their topics, at a time: they mostly wait, and have their own slots."""
LINK_GRACE_SECONDS = 0.5
"""Jobs of links run for minutes, and lose nothing when they are returned to the queue."""
LINK_CONNECTIONS = 2
"""Metastore connections for all jobs of links: each uses one for some milliseconds every few seconds."""
SPARE_CONNECTIONS = 2
"""Metastore connections in addition to one per job: heartbeats must not wait for a swap."""
P = ParamSpec("P")
T = TypeVar("T")


def with_worker_pool(settings: Settings) -> Settings:
    """The settings, with as many metastore connections as a worker needs."""
    own = LINK_CONNECTIONS + SPARE_CONNECTIONS
    return msgspec.structs.replace(settings, metastore_pool_size=settings.compactor_threads + own)


class Worker:
    """Create it with `open`, then `start`, and finally `stop` and `close`; or on connections that others close."""

    def __init__(
        self,
        context: ProcessContext,
        job_metrics: JobMetrics,
        node_id: Callable[[], int | None] = no_agent,
        said_here: SaidHere = no_image,
    ) -> None:
        """`job_metrics`: the process's. `node_id`: of the agent in this process. It and `said_here` are called on the
        worker's thread."""
        settings, store, clock = context.settings, context.store, context.clock
        self._context, self._settings, self.metastore = context, settings, context.metastore
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self._said_here = said_here
        self._throttled = ThrottledStore(
            store,
            bytes_per_s=settings.compactor_io_max_bytes_per_second,
            requests_per_s=REQUESTS_PER_S,
            clock=clock,
        )
        self._throttled_cleaning = ThrottledStore(
            self._throttled,
            bytes_per_s=settings.log_cleaner_io_max_bytes_per_second,
            requests_per_s=REQUESTS_PER_S,
            clock=clock,
        )
        self._following: asyncio.Task[None] | None = None
        self._link_threads = ThreadPoolExecutor(LINK_REQUESTS_MAX, thread_name_prefix="links")
        looking, copying = self._link_handlers()
        self._link_runner, self._look_runner = (
            JobRunner(
                context.metastore.jobs,
                handlers,
                RunnerTerms(self.name, slots, LINK_LEASE_MS, node_id),
                clock,
                context.rng,
                job_metrics,
                context.supervisor,
            )
            for handlers, slots in ((copying, settings.link_threads), (looking, LINK_LOOKS))
        )
        self._runner = JobRunner(
            context.metastore.jobs,
            self._handlers(),
            RunnerTerms(self.name, settings.compactor_threads, node_id=node_id),
            clock,
            context.rng,
            job_metrics,
            context.supervisor,
        )

    @classmethod
    async def open(
        cls,
        settings: Settings,
        registry: CollectorRegistry,
        life: LifeKeeper,
        supervisor: Supervisor,
        node_id: Callable[[], int | None] = no_agent,
        said_here: SaidHere = no_image,
    ) -> Self:
        """Connect to metastore and bucket; errors as PostgresMetastore.open and open_store. `life`: the process's."""
        clock, rng = SystemClock(), random.Random()
        store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
        metastore = await PostgresMetastore.open(settings.metastore_url, with_worker_pool(settings))
        life.name_for(metastore.life)
        context = ProcessContext(
            settings=settings,
            store=InlineStore(store, metastore.inline),
            metastore=metastore,
            clock=clock,
            rng=rng,
            registry=registry,
            supervisor=supervisor,
        )
        return cls(context, JobMetrics(clock, registry), node_id, said_here)

    def start(self) -> None:
        """Start to look for jobs, at the configured pace. The event loop is the worker's."""
        if self._settings.compaction_cpu_percent < ALL_OF_A_CORE:
            asyncio.get_running_loop().set_default_executor(CpuShare(self._settings.compaction_cpu_percent))
        self._runner.start()
        self._link_runner.start()
        self._look_runner.start()
        configs = EffectiveConfigs(self._settings)
        self._following = self._context.supervisor.keep(
            "pace",
            partial(
                follow_pace, self.metastore.cluster, configs, self._context.clock, self._change_pace, self._said_here
            ),
        )

    async def stop(self) -> None:
        """Give jobs shutdown.grace.ms to finish, then return them to the queue. Safe in any state."""
        if self._following is not None:
            self._following.cancel()
        grace_seconds = self._settings.shutdown_grace_ms / 1000
        of_links = [runner.stop(LINK_GRACE_SECONDS) for runner in (self._link_runner, self._look_runner)]
        await asyncio.gather(self._runner.stop(grace_seconds), *of_links)
        self._link_threads.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Close the connections that `open` opened, after `stop`."""
        await self._context.close()

    async def _change_pace(self, pace: Pace) -> None:
        await self.metastore.keep_connections(pace.jobs + LINK_CONNECTIONS + SPARE_CONNECTIONS)
        self._runner.resize(pace.jobs)
        self._throttled.limit_bytes(pace.bytes_per_s)
        self._throttled_cleaning.limit_bytes(pace.cleaning_bytes_per_s)

    def _handlers(self) -> dict[str, JobHandler]:
        """Return what this worker does, by kind of job: with the settings in force when a job starts, if it has any."""
        metastore, store, clock = self.metastore, self._throttled, self._context.clock
        rng, registry = self._context.rng, self._context.registry
        shards, cleaning_store = metastore.commit_shards, self._throttled_cleaning
        undecided = Undecided(registry)
        deletions = JanitorMetrics(registry, undecided)
        compaction, cleaning = CompactionMetrics(registry), CleaningMetrics(registry)
        cleanup = SegmentCleanupMetrics(registry)
        archiver = AuditArchiver(metastore, store, clock, rng, AuditArchiveMetrics(registry))
        place, held = ScanPlace(), dict[int, int]()
        fixed: dict[JobKind, JobHandler] = {
            RETENTION: Retention(metastore, RetentionMetrics(registry), undecided),
            DELETE_DEAD_FILES: Janitor(metastore, store, deletions),
            SWEEP_ORPHANS: Sweeper(metastore, store, deletions),
            RECORD_OUTCOMES: OutcomeJob(metastore, store, rng, clock),
            ARCHIVE_AUDIT: archiver,
            ARCHIVE_AUDIT_ROWS: archiver.archive_rows,
        }
        by_settings: dict[JobKind, Callable[[Settings], JobHandler]] = {
            PLAN_COMPACTION: lambda terms: Planner(metastore, PolicyLimits.of(terms), compaction, place).handle,
            COMPACT: lambda terms: (
                Compactor(store, metastore, shards, MergeLimits.of(terms), clock, rng, compaction).handle
            ),
            PLAN_CLEANING: lambda terms: (
                CleaningPlanner(
                    metastore, SparkLimits.of(terms), cleaning, held, is_enabled=terms.log_cleaner_enable
                ).handle
            ),
            CLEAN: lambda terms: (
                Cleaner(cleaning_store, metastore, shards, CleaningTerms.of(terms), clock, rng, cleaning).handle
            ),
            CLEAN_UP_SEGMENTS: lambda terms: SegmentCleanup(metastore.segments, terms, cleanup).handle,
        }
        return {
            **{kind.name: handler for kind, handler in fixed.items()},
            **{kind.name: partial(self._with_settings, make) for kind, make in by_settings.items()},
        }

    def _link_handlers(self) -> tuple[dict[str, JobHandler], dict[str, JobHandler]]:
        """Return what this worker does for links: looking, and copying. Both have their own slots, so that no merge
        waits for a source, and no plan for a copy; the bucket's limits for background work do not hold for them: a
        link has its own.
        """
        metastore, clock, rng = self.metastore, self._context.clock, self._context.rng
        metrics = LinkMetrics(self._context.registry)
        opener = SourceOpener(Sealing(self._settings.metadata_secret_keys), self._link_threads)
        looking: dict[str, JobHandler] = {
            PLAN_LINKS.name: LinkPlanner(metastore.links, metastore.jobs).handle,
            LINK_TOPICS.name: LinkTopics(metastore, opener, clock, metrics).handle,
        }
        return looking, {LINK_COPY.name: LinkCopier(metastore, self._context.store, opener, clock, rng, metrics).handle}

    async def _with_settings(self, make: Callable[[Settings], JobHandler], job: Job, lease: Lease) -> None:
        await make(await read_settings(self.metastore.cluster, self._settings))(job, lease)


class CpuShare(ThreadPoolExecutor):
    """Limits the CPU time of background work. `cpu_seconds`: of the calling thread so far; `rest` blocks it."""

    def __init__(
        self,
        percent: int,
        *,
        cpu_seconds: Callable[[], float] = time.thread_time,
        rest: Callable[[float], Any] = time.sleep,
    ) -> None:
        super().__init__(thread_name_prefix="paced")
        self._rest_per_second = 100 / percent - 1
        self._cpu_seconds, self._rest = cpu_seconds, rest

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit as Executor does."""
        return super().submit(self._step, fn, *args, **kwargs)

    def _step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        began = self._cpu_seconds()
        try:
            return fn(*args, **kwargs)
        finally:
            self._rest((self._cpu_seconds() - began) * self._rest_per_second)
