"""Transactional producers in a world with a real Postgres and bucket, and what readers may see of their records.

`Truth` knows what was sent and how each transaction ended; `committed` reads a partition as Kafka's consumers do
(KIP-98): with isolation read_committed, through Fetch, skipping what an answer says is aborted.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.agent.fetch.service import FetchService
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch, TransactionVerdict
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.header import TRANSACTIONAL_BIT, read_header
from tests.agent.fetch.fetch_world import split_sent
from tests.agent.fetch.test_postgres import PostgresWorld
from tests.metastore.transactions.transaction_scenes import new_producer_id
from tests.storage.batches import BASE_TIME_MS, forge

KeyValue = tuple[str | None, str | None]


class SeenRecord(NamedTuple):
    """A record as a reader sees it."""

    offset: int
    key: str | None
    value: str | None


@dataclass
class Truth:
    """What was sent to each partition, and how it ended."""

    sent: dict[int, list[tuple[SeenRecord, ProducerEpoch | None]]] = field(default_factory=lambda: defaultdict(list))
    outcomes: dict[ProducerEpoch, bool] = field(default_factory=dict)
    """Outcomes of ended transactions, by the identity that wrote them: whether they were committed."""

    def committed(self, key: int, start: int = 0) -> list[SeenRecord]:
        """Return what a read_committed reader of the partition may see, from this offset on."""
        found = []
        for record, owner in self.sent[key]:
            if owner is not None and owner not in self.outcomes:
                break
            if record.offset >= start and (owner is None or self.outcomes[owner]):
                found.append(record)
        return found

    def all(self, key: int) -> list[SeenRecord]:
        """Return what a read_uncommitted reader sees."""
        return [record for record, _ in self.sent[key]]


@dataclass
class Writer:
    """A transactional producer of KIP-890: each transaction has its own epoch."""

    world: PostgresWorld
    truth: Truth
    name: str
    who: ProducerEpoch = NO_PRODUCER
    sequences: dict[int, int] = field(default_factory=dict)

    async def begin(self) -> None:
        """InitProducerId: an open transaction is aborted."""
        if self.who != NO_PRODUCER:
            self.truth.outcomes.setdefault(self.who, False)
        answer = await self.world.postgres.transactions.init_producer(self.name, 60_000, NO_PRODUCER, new_producer_id())
        self._take(answer.producer)

    async def send(self, key: int, *records: KeyValue) -> None:
        """One batch of the open transaction, which it may begin."""
        fields = {"attributes": TRANSACTIONAL_BIT, "producer_id": self.who.producer_id}
        fields |= {"producer_epoch": self.who.epoch, "base_sequence": self.sequences.get(key, 0)}
        await send(self.world, self.truth, key, records, self.who, **fields)
        self.sequences[key] = self.sequences.get(key, 0) + len(records)

    async def end(self, *, commits: bool) -> None:
        """EndTxn."""
        answer = await self.world.postgres.transactions.end_transaction(
            self.name, self.who, commits=commits, bumps=True, new_producer_id=new_producer_id()
        )
        if answer.verdict is TransactionVerdict.DONE:
            self.truth.outcomes.setdefault(self.who, commits)
            self._take(answer.producer)

    def _take(self, who: ProducerEpoch) -> None:
        self.who = who
        self.sequences.clear()


async def send(
    world: PostgresWorld,
    truth: Truth,
    key: int,
    records: Sequence[KeyValue],
    owner: ProducerEpoch | None = None,
    **fields: int,
) -> None:
    """One batch in one file; it has to be appended."""
    encoded = [
        Record(n, BASE_TIME_MS + n, None if k is None else k.encode(), None if v is None else v.encode())
        for n, (k, v) in enumerate(records)
    ]
    before = len(world.live[key])
    await world.commit((key, forge(encode_batch(encoded, base_offset=0), **fields)))
    (live,) = world.live[key][before:]
    base = live.last_offset - len(records) + 1
    truth.sent[key] += [(SeenRecord(base + n, k, v), owner) for n, (k, v) in enumerate(records)]


async def committed(
    world: PostgresWorld, key: int, start: int = 0, max_bytes: int = 1 << 20, service: FetchService | None = None
) -> list[SeenRecord]:
    """Return every record that a read_committed consumer gets from `start` on, by an agent that was just started unless
    one is given.
    """
    if service is None:
        service = world.new_service()
        await service.start()
        try:
            return await committed(world, key, start, max_bytes, service)
        finally:
            await service.close()
    found: list[SeenRecord] = []
    offset = start
    while True:
        reply = await world.request_fetch(
            {key: offset}, isolation_level=1, partition_max_bytes=max_bytes, service=service
        )
        partition = reply.partitions[key]
        assert reply.code(key) == 0, reply.code(key)
        sent = split_sent(reply.records(key))
        if not sent:
            assert offset >= partition.last_stable_offset, (offset, partition.last_stable_offset)
            return [record for record in found if record.offset >= start]
        waiting = sorted((a.first_offset, a.producer_id) for a in partition.aborted_transactions or ())
        skipped: set[int] = set()
        for batch in sent:
            header = read_header(batch)
            offset = header.base_offset + header.last_offset_delta + 1
            while waiting and waiting[0][0] < offset:
                skipped.add(waiting.pop(0)[1])
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                found += [_seen(record) for record in decode_records(memoryview(batch))]


def _seen(record: Record) -> SeenRecord:
    return SeenRecord(
        record.offset,
        None if record.key is None else record.key.decode(),
        None if record.value is None else record.value.decode(),
    )


async def some_writers(world: PostgresWorld, truth: Truth, rng: random.Random, count: int) -> list[Writer]:
    """New transactional producers, ready to send."""
    writers = [Writer(world, truth, f"writer-{number}-{rng.getrandbits(32)}") for number in range(count)]
    for writer in writers:
        await writer.begin()
    return writers


async def some_history(
    world: PostgresWorld, keys: Sequence[int], rng: random.Random, steps: int, truth: Truth | None = None
) -> tuple[Truth, list[Writer]]:
    """Batches of three transactional producers and of one without transactions, and ends of both kinds."""
    truth = truth or Truth()
    writers = await some_writers(world, truth, rng, 3)
    for step in range(steps):
        writer, key, draw = rng.choice(writers), rng.choice(keys), rng.random()
        records = [
            (rng.choice("abcd"), rng.choice([f"{step}-{n}", f"{step}-{n}", None])) for n in range(rng.randint(1, 3))
        ]
        if draw < 0.5:
            await writer.send(key, *records)
        elif draw < 0.65:
            await send(world, truth, key, records)
        elif draw < 0.95:
            await writer.end(commits=rng.random() < 0.5)
        else:
            await writer.begin()
    return truth, writers
