"""The metastore's reports for pages, on a separate thread with its own event loop.

Place: under the pages of files, and the overview; metastore/postgres/reports/ has the queries (decisions/0031).
table_link.py asks its questions on such a thread, too.
Invariant of an answer: an answer is kept for as long as its question says, so readers of the console cost the same
as one; an error is not kept. A page waits for a limited time: then UnavailableError, and the next page waits for the
same question.
Invariant: reads only. An answer is kept for KEPT_SECONDS, so readers of the console cost Postgres the same as one. A
Postgres that is away is UnavailableError; the next request after that tries again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from headrace.cli.doctor import bucket as doctor_bucket
from headrace.cli.doctor import cluster as doctor_cluster
from headrace.cli.doctor import postgres as doctor_postgres
from headrace.cli.doctor.bucket_facts import read_bucket_facts
from headrace.cli.doctor.findings import Finding, of_bucket
from headrace.config.settings import Settings
from headrace.metastore.api.inline import InlineState
from headrace.metastore.api.reports import AgentLease, FileLevel, JobCount, JobStatus, Statistics
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore

T = TypeVar("T")
ANSWER_SECONDS = 15.0


class KeptAnswers:
    """Asks one source. `name`: of the source, for errors."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._kept: dict[str, tuple[float, Future[Any]]] = {}
        self._keeping = threading.Lock()

    def ask(self, name: str, kept_seconds: float, question: Coroutine[Any, Any, T]) -> T:
        """Return the question's answer, or the kept one of that name. Errors of the question; UnavailableError."""
        with self._keeping:
            now = self._clock.monotonic()
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now or not kept[1].done()}
            _, future = self._kept.get(name, (0.0, None))
            if future is None or (future.done() and future.exception() is not None):
                future = asyncio.run_coroutine_threadsafe(question, self._loop)
                self._kept[name] = (now + kept_seconds, future)
            else:
                question.close()
        try:
            answer: T = future.result(ANSWER_SECONDS)
        except TimeoutError as error:
            raise UnavailableError(f"the {self._name} did not answer in {ANSWER_SECONDS:.0f} s") from error
        return answer

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Do the last thing, and end the thread."""
        if last is not None:
            asyncio.run_coroutine_threadsafe(last, self._loop).result(ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)


KEPT_SECONDS = 4.0
FINDINGS_KEPT_SECONDS = 60.0
BUCKET_SECONDS = 15.0
JOBS_MAX = 200


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """What the files page shows."""

    levels: list[FileLevel]
    statistics: Statistics
    counts: list[JobCount]
    jobs: list[JobStatus]
    """The jobs, at most JOBS_MAX: unfinished ones first."""
    inline: InlineState


@dataclass(frozen=True, slots=True)
class Registrations:
    """What the overview shows of agents."""

    image: MetadataImage
    leases: list[AgentLease]


class MetastoreLink:
    """Opens the metastore at the first question."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = msgspec.structs.replace(settings, metastore_pool_size=1)
        self._clock = clock
        self._answers = KeptAnswers("metastore", clock)
        self._opening = asyncio.Lock()
        self._metastore: PostgresMetastore | None = None

    @property
    def address(self) -> str:
        """What is tried, for people: without the password."""
        return doctor_postgres.address_of(self._settings)

    def background_work(self) -> BackgroundWork:
        """UnavailableError if Postgres does not answer; InvalidError if it is no metastore of this version."""
        return self._answers.ask("background work", KEPT_SECONDS, self._background_work())

    def registrations(self) -> Registrations:
        """Errors as `background_work`."""
        return self._answers.ask("registrations", KEPT_SECONDS, self._registrations())

    def findings(self) -> list[Finding]:
        """Return what `headrace doctor` says of Postgres and of agents; a Postgres that is away is a finding."""
        return self._answers.ask("findings", FINDINGS_KEPT_SECONDS, self._findings())

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._answers.close(self._close())

    async def _opened(self) -> PostgresMetastore:
        async with self._opening:
            if self._metastore is None:
                self._metastore = await PostgresMetastore.open(self._settings.metastore_url, self._settings)
            return self._metastore

    async def _background_work(self) -> BackgroundWork:
        metastore = await self._opened()
        return BackgroundWork(
            await metastore.reports.file_levels(),
            await metastore.reports.statistics(),
            await metastore.reports.count_jobs(),
            await metastore.reports.list_jobs(JOBS_MAX),
            await metastore.inline.inline_state(),
        )

    async def _registrations(self) -> Registrations:
        metastore = await self._opened()
        return Registrations(await load_image(metastore.cluster), await metastore.reports.agent_leases())

    async def _findings(self) -> list[Finding]:
        found = await doctor_postgres.examine(self._settings, self._clock)
        store, facts = self._opened_store(), None
        if store is not None:
            try:
                facts = await within(self._clock, BUCKET_SECONDS, read_bucket_facts(store))
            except HeadraceError as error:
                found.append(doctor_bucket.AREA.bad("read", str(error), of_bucket(str(error), "cluster")))
            except TimeoutError:
                why = f"no answer in {BUCKET_SECONDS:g} s"
                found.append(doctor_bucket.AREA.unknown("read", why, doctor_bucket.ASK_AGAIN))
            finally:
                await store.close()
        return [*found, *await doctor_cluster.examine(self._settings, facts, self._clock, asks_by_http=False)]

    def _opened_store(self) -> ObjectStore | None:
        """None without a setting `bucket`: then the bucket's part of the findings is missing."""
        if not self._settings.bucket:
            return None
        options = StoreOptions.of(msgspec.structs.replace(self._settings, store_retries=0, store_hedge_percent=0))
        return open_store(self._settings.bucket, options, clock=self._clock, rng=random.Random())

    async def _close(self) -> None:
        if self._metastore is not None:
            await self._metastore.close()
