"""Fetch and transactions on real Postgres: what read_committed and read_uncommitted see, from every source.

Invariant checked: in any history of transactions, a reader with isolation read_committed that skips what it hears is
aborted (as Kafka's clients do) gets the records of committed transactions and of producers without one, up to the last
stable offset, at every moment and from every offset; from the tail, from remembered segments, and from the primary.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.tail import Lookup, LookupStatus, stable_part
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import NONE_OPEN, AbortedRange, ExtentQuery, PartitionExtents
from headrace.metastore.api.transactions import NO_PRODUCER
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import marker_of
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.sql_sources import Throwaway
from tests.metastore.transactions.transaction_scenes import Producer
from tests.planted import PlantedBugs, Trial

STEPS = 60
ALL = 1 << 40


class WrongView(AssertionError):
    """A reader sees what it must not, or misses something."""


@dataclass
class Readers:
    """One partition, producers, and an agent's index that follows the feed now and then."""

    store: PostgresMetastore
    seed: int
    owners: dict[uuid.UUID, tuple[int, int]] = field(default_factory=dict)
    """The producer's identity by file; absent: no transaction."""

    @staticmethod
    def plant(index: TailIndex) -> None:
        """Puts a bug into an agent; none."""

    async def begin(self) -> None:
        self.rng = random.Random(self.seed)
        self.scene = await open_scene(self.store)
        (self.key,) = self.scene.keys
        self.producers = [Producer(self.scene, name) for name in ("one", "two", "three")]
        for producer in self.producers:
            await producer.init()
        await self._start_agent()

    async def _start_agent(self) -> None:
        """An agent that knows nothing yet."""
        self.index = TailIndex(self.store.commit_shards, extents_max=self.rng.choice([4, 1_000]))
        self.plant(self.index)
        self.locator = Locator(self.index, self.store.index, self.rng, FetchMetrics(CollectorRegistry()))
        await self._follow()

    async def step(self) -> None:
        """Something happens to the log; maybe the agent learns of it; then it is read."""
        producer = self.rng.choice(self.producers)
        draw = self.rng.random()
        if draw < 0.45:
            file = file_of([producer.batch()])
            self.owners[file.file_id] = producer.who
            ((answer,),) = [found.batches for found in await self.scene.commit(file)]
            assert answer.outcome is BatchOutcome.APPENDED
            producer.sequences[0] = producer.sequences.get(0, 0) + file.batches[0].record_count
        elif draw < 0.6:
            await self.scene.commit(file_of([batch(self.key)]))
        elif draw < 0.95:
            await producer.end(commits=self.rng.random() < 0.5)
        else:
            await producer.init(NO_PRODUCER)
        if self.rng.random() < 0.1:
            await self._start_agent()
        if self.rng.random() < 0.5:
            await self._follow()
        await self._read()

    async def _follow(self) -> None:
        self.index.apply(await self.store.index.poll_feed(self.index.heads))

    async def _read(self) -> None:
        (everything,) = await self.store.index.find_extents([ExtentQuery(self.key, 0, ALL)])
        ended = set(everything.aborted)
        for _ in range(3):
            offset = self.rng.randrange(everything.high_watermark + 1)
            query = ExtentQuery(self.key, offset, self.rng.choice([1, 250, ALL]))
            (found,) = await self.locator.locate([query])
            if found.status is LookupStatus.OUT_OF_RANGE:
                continue
            self._check(query, stable_part(query, found), ended, everything.last_stable_offset)

    def _check(self, query: ExtentQuery, found: Lookup, ended: set[AbortedRange], stable: int) -> None:
        """Do the same as Kafka's consumer reads it (KIP-98)."""
        waiting = sorted(found.aborted, key=lambda a: a.first_offset)
        skipped: dict[int, bool] = defaultdict(bool)
        for extent in found.extents:
            if extent.base_offset >= min(found.last_stable_offset, stable):
                raise WrongView(f"seed={self.seed} {query} beyond the stable offset: {extent} {found}")
            while waiting and waiting[0].first_offset <= extent.last_offset:
                skipped[waiting.pop(0).producer_id] = True
            marker = marker_of(extent.source)
            if marker is not None:
                skipped[marker.producer_id] = False
                continue
            owner = self.owners.get(extent.source)
            is_shown = owner is None or not skipped[owner[0]]
            is_aborted = owner is not None and any(
                a.producer_id == owner[0] and a.first_offset <= extent.base_offset < a.last_offset for a in ended
            )
            if is_shown == is_aborted:
                raise WrongView(f"seed={self.seed} {query} {is_shown=} {is_aborted=} {extent} {found}")


async def followed(store: PostgresMetastore, seeds: Iterable[int]) -> None:
    """A history for each seed; WrongView names it."""
    for seed in seeds:
        readers = Readers(store, seed)
        await readers.begin()
        for _ in range(STEPS):
            await readers.step()


async def test_read_committed_is_right_at_every_moment_from_every_source(metastore: PostgresMetastore) -> None:
    await followed(metastore, range(4))


def _no_aborted(index: TailIndex) -> None:
    """Forget what has ended."""
    original = index._note_transactions

    def forget(row: object, heard: dict[int, int]) -> None:
        original(row, heard)  # type: ignore[arg-type]
        for tail in index._tails.values():
            tail.aborted = []

    index._note_transactions = forget  # type: ignore[method-assign]


def _nothing_is_open(index: TailIndex) -> None:
    original = index._note_transactions

    def forget(row: object, heard: dict[int, int]) -> None:
        original(row, heard)  # type: ignore[arg-type]
        for tail in index._tails.values():
            tail.first_open_offset = NONE_OPEN

    index._note_transactions = forget  # type: ignore[method-assign]


def _history_without_aborted(index: TailIndex) -> None:
    index.history.aborted = lambda key: []  # type: ignore[method-assign]


def _primary_without_open(index: TailIndex) -> None:
    """An answer of the primary says nothing of open transactions."""
    original = index.observe
    index.observe = lambda answer, generation: original(  # type: ignore[method-assign]
        type(answer)(
            answer.partition_key, answer.known, answer.log_start_offset, answer.high_watermark, answer.extents
        ),
        generation,
    )


def _ahead_of_the_feed(index: TailIndex) -> None:
    """Let what the primary says is over count before the feed has brought the end."""
    original = index.observe

    def observe(answer: PartitionExtents, generation: int) -> None:
        original(answer, generation)
        tail = index._tails.get(answer.partition_key)
        if tail is not None and tail.fed_to is not None and tail.fed_to < answer.high_watermark:
            tail.first_open_offset, tail.fed_to = answer.first_open_offset, answer.high_watermark

    index.observe = observe  # type: ignore[method-assign]


BUGS = [_no_aborted, _nothing_is_open, _history_without_aborted, _primary_without_open, _ahead_of_the_feed]
PLANTED = PlantedBugs("reads of transactions", most=500)


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
async def test_a_planted_bug_is_caught(
    bug: Callable[[TailIndex], None],
    trial: Trial,
    throwaway: Throwaway,
) -> None:
    trial.plant(Readers, "plant", staticmethod(bug))
    for seed in trial.seeds():
        async with throwaway.store() as (_, store):
            with trial.shown_by(WrongView):
                await followed(store, [seed])
