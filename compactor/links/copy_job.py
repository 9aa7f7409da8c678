"""The handler of jobs `link-copy`: opens the source of the link, and lets rounds and looks alternate.

Place: in the job loop of links (compactor/worker.py). The job's key is LINK/SHARE, its payload the number of shares.
Invariant: the job ends when the link's configs are other ones, when it is paused or dropped, after RUN_SECONDS, and
sooner if other jobs wait for a slot; its lease fences all that it does to the metastore.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

import msgspec

from headrace.compactor.links.copying import Copying, LinkPace
from headrace.compactor.links.kafka_source import open_source
from headrace.compactor.links.looks import Looks, LookTerms
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.source import Source
from headrace.compactor.links.storing import LinkStore
from headrace.compactor.links.turns import TURN_SECONDS, others_wait
from headrace.config.errors import ConfigError
from headrace.config.link_configs import FENCES, MAX_RATE, WATCH_MS, is_paused, value_of
from headrace.jobs.kinds import LINK_COPY
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, NewJob
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.retention import OldestQuery
from headrace.metastore.link_secrets import opened
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

RUN_SECONDS = 300.0
TICK_SECONDS = 0.25
REPORT_SECONDS = 2.0
LOOK_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.5
REASON_SECONDS = 30.0
FAILURE_SECONDS = 5.0
ANY_PARTITION = OldestQuery(0, 1)


class CopyShare(msgspec.Struct, frozen=True):
    """Payload of a job `link-copy`."""

    share: int
    shares: int


def copy_job(link: str, share: int, shares: int) -> NewJob:
    """Return the job that copies a share of a link's partitions."""
    return LINK_COPY.once(f"{link}/{share}", msgspec.json.encode(CopyShare(share, shares)))


class SourceOpener:
    """Opens the sources of links, with secrets that this process can open."""

    def __init__(
        self,
        sealing: Sealing,
        threads: Executor,
        open_with: Callable[[Mapping[str, str], Executor], Source] = open_source,
    ) -> None:
        self._sealing, self._threads, self._open = sealing, threads, open_with

    def open(self, link: str, stored: Mapping[str, str]) -> Source:
        """Return the source. InvalidError says which config cannot be used."""
        try:
            return self._open(opened(self._sealing, link, stored), self._threads)
        except ConfigError as error:
            raise InvalidError(str(error)) from error


class LinkCopier:
    """Runs jobs of kind `link-copy`; one instance may run several at a time."""

    def __init__(
        self,
        metastore: Metastore,
        store: ObjectStore,
        opener: SourceOpener,
        clock: Clock,
        rng: random.Random,
        metrics: LinkMetrics,
    ) -> None:
        self._metastore, self._store, self._opener = metastore, store, opener
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Copy until the job's time is over. FencedError if the lease is lost; else as metastore and bucket."""
        link, _, _ = job.key.rpartition("/")
        part = msgspec.json.decode(job.payload, type=CopyShare)
        configs = (await self._metastore.links.link_configs()).get(link)
        if configs is None or is_paused(configs):
            return
        try:
            source = self._opener.open(link, configs)
        except InvalidError as error:  # `link-topics` reports it
            logger.warning("link cannot be used: link=%s error=%s", link, error)
            return
        try:
            await _Run(self._metastore, self._clock, link, part, configs, lease).copy(
                source, self._store, self._rng, self._metrics
            )
        finally:
            self._metrics.end((link, job.key))
            await source.close()


class _Run:
    """One run of a job."""

    def __init__(
        self, metastore: Metastore, clock: Clock, link: str, part: CopyShare, configs: Mapping[str, str], lease: Lease
    ) -> None:
        self._metastore, self._clock, self._lease = metastore, clock, lease
        self._link, self._part, self._configs = link, part, configs
        self._next = {"turn": clock.monotonic() + TURN_SECONDS}

    async def copy(self, source: Source, store: ObjectStore, rng: random.Random, metrics: LinkMetrics) -> None:
        """Alternate looks and rounds."""
        metastore, clock, token = self._metastore, self._clock, self._lease.token
        now_ms, _ = await metastore.retention.oldest_extents([ANY_PARTITION])  # for the database's clock
        began = clock.monotonic()
        stored = LinkStore(
            metastore.links,
            metastore.segments,
            store,
            token,
            rng,
            lambda: now_ms + round((clock.monotonic() - began) * 1000),
        )
        pace = LinkPace(int(value_of(self._configs, MAX_RATE)) / self._part.shares)
        copying = Copying(self._link, source, stored, clock, pace, metrics)
        known = {each.link: each.cluster_id for each in await metastore.links.link_sources()}
        terms = LookTerms(
            lambda row: row.partition_key % self._part.shares == self._part.share,
            known.get(self._link, ""),
            value_of(self._configs, FENCES) == "true",
            int(value_of(self._configs, WATCH_MS)) / 1000,
        )
        looks = Looks(copying, metastore.links, metastore.retention, token, terms)
        try:
            while clock.monotonic() - began < RUN_SECONDS and not copying.is_over:
                if self._is_due("look", LOOK_SECONDS) and not await self._look(copying, looks):
                    break
                await self._look_at_source(copying, looks)
                await copying.step(TICK_SECONDS)
                if copying.lost:
                    await looks.at_lost()
                if self._is_due("report", REPORT_SECONDS):
                    await looks.at_promotions()
                    metrics.late.labels(self._link).inc(await looks.at_late_records())
                    await looks.move_log_starts()
                    await looks.report()
                    metrics.show((self._link, self._lease.job.key), copying.copies.values(), clock.monotonic())
                    self._lease.progress = f"partitions={len(copying.copies)}"
            await copying.finish()
            if copying.lost:
                await looks.at_lost()
            metrics.late.labels(self._link).inc(await looks.at_late_records())
            await looks.report()
            if copying.has_failed:
                await clock.sleep(FAILURE_SECONDS)
        finally:
            await copying.abandon()

    async def _look(self, copying: Copying, looks: Looks) -> bool:
        """Read the rows again; False if the job has nothing to do any more."""
        if (await self._metastore.links.link_configs()).get(self._link) != self._configs:
            return False
        if self._is_due("turn", TURN_SECONDS) and await others_wait(self._metastore.reports, [LINK_COPY.name]):
            return False
        await looks.at_rows()
        copying.needs_look = True
        return bool(copying.copies) or looks.watches

    async def _look_at_source(self, copying: Copying, looks: Looks) -> None:
        """Look at the source where something is not known."""
        if copying.needs_look and self._is_due("source", LOOK_AGAIN_SECONDS):
            await looks.at_source()
            await looks.at_bounds()
        if self._is_due("reasons", REASON_SECONDS):
            await looks.at_reasons()

    def _is_due(self, what: str, every_seconds: float) -> bool:
        """Return whether it is time for this; counts as done now."""
        now = self._clock.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every_seconds
        return True
