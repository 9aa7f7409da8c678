"""A topic, an agent, and transactional producers: what the tests of transactions start from."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, StagedBatch
from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupRecord
from headrace.metastore.api.read import AbortedRange, ExtentQuery, PartitionExtents
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch, TransactionAnswer, TransactionVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import Marker, marker_of
from tests.metastore.commit_scenes import Scene, batch, open_scene

TIMEOUT_MS = 60_000
RECORDS = 5
"""Records of each batch."""
_new_ids = itertools.count(50_000)

Entry = str | Marker
"""Entry of a partition's log: "data", or a marker."""


def new_producer_id() -> int:
    """One that no other producer has."""
    return next(_new_ids)


@dataclass
class Producer:
    """One instance with a transactional id; `who` is its present identity."""

    scene: Scene
    transactional_id: str
    bumps: bool = True
    """The same as a client of KIP-890; else it adds partitions before it writes, and keeps its epoch."""
    who: ProducerEpoch = NO_PRODUCER
    sequences: dict[int, int] = field(default_factory=dict)

    async def init(self, asked: ProducerEpoch = NO_PRODUCER, timeout_ms: int = TIMEOUT_MS) -> ProducerEpoch:
        """InitProducerId."""
        answer = await self.scene.store.transactions.init_producer(
            self.transactional_id, timeout_ms, asked, new_producer_id()
        )
        assert answer.verdict is TransactionVerdict.DONE
        self._take(answer.producer)
        return self.who

    async def add(self, *partitions: int) -> TransactionVerdict:
        """AddPartitionsToTxn."""
        keys = {self.scene.keys[partition] for partition in partitions}
        return (await self.scene.store.transactions.add_to_transaction(self.transactional_id, self.who, keys)).verdict

    def batch(self, partition: int = 0, *, transactional: bool = True) -> StagedBatch:
        """The next batch to the partition, as the agent lays it out."""
        kind = BatchTransaction.ANY_PARTITION if self.bumps else BatchTransaction.ADDED
        return batch(
            self.scene.keys[partition],
            self.sequences.get(partition, 0),
            RECORDS,
            producer=self.who.producer_id,
            epoch=self.who.epoch,
            transaction=kind if transactional else BatchTransaction.NO_TRANSACTION,
        )

    async def send(self, *partitions: int, transactional: bool = True) -> list[tuple[BatchOutcome, int]]:
        """Commit one batch per partition in one file; (outcome, base offset) of each."""
        found = await self.scene.outcomes(*(self.batch(p, transactional=transactional) for p in partitions))
        for partition, (outcome, _) in zip(partitions, found, strict=True):
            if outcome is BatchOutcome.APPENDED:
                self.sequences[partition] = self.sequences.get(partition, 0) + RECORDS
        return found

    async def end(self, *, commits: bool = True) -> TransactionVerdict:
        """EndTxn; the producer continues as the answer says."""
        answer = await self.ask_end(self.who, commits=commits)
        if answer.verdict is TransactionVerdict.DONE:
            self._take(answer.producer)
        return answer.verdict

    async def ask_end(self, who: ProducerEpoch, *, commits: bool) -> TransactionAnswer:
        """EndTxn by any earlier self."""
        return await self.scene.store.transactions.end_transaction(
            self.transactional_id, who, commits=commits, bumps=self.bumps, new_producer_id=new_producer_id()
        )

    def _take(self, who: ProducerEpoch) -> None:
        if who != self.who:
            self.sequences.clear()
        self.who = who


async def open_transactions(store: PostgresMetastore, partitions: int = 2, *, bumps: bool = True) -> Producer:
    """A producer that has begun; `scene` is its world."""
    producer = Producer(await open_scene(store, partitions), "copy", bumps)
    await producer.init()
    return producer


async def read(scene: Scene, partition: int = 0, offset: int = 0) -> PartitionExtents:
    """All of the partition from this offset on."""
    (found,) = await scene.store.index.find_extents([ExtentQuery(scene.keys[partition], offset, 1 << 40)])
    return found


async def log_of(scene: Scene, partition: int = 0) -> list[Entry]:
    """The entries of the partition, in order."""
    extents = (await read(scene, partition)).extents
    return [marker_of(extent.source) or "data" for extent in extents]


def aborts(found: PartitionExtents) -> list[tuple[int, int, int]]:
    """(producer id, first, last offset) of the aborted transactions that a reader learns of."""
    return [(a.producer_id, a.first_offset, a.last_offset) for a in found.aborted]


def aborted(key: int, producer_id: int, first: int, last: int) -> AbortedRange:
    """Return the aborted transaction in the order of its fields."""
    return AbortedRange(key, producer_id, first, last)


async def claimed_group(scene: Scene, group_id: str) -> int:
    """A group that the scene's agent coordinates; its coordinator epoch."""
    claim = await scene.store.groups.claim_group(group_id, *scene.agent)
    assert claim is not None
    record = GroupRecord(GroupKind.CLASSIC, "Stable", "consumer", (), b"saved")
    await scene.store.groups.save_group(group_id, claim.coordinator_epoch, record)
    return claim.coordinator_epoch


def position(key: int, offset: int) -> CommittedOffset:
    """Return the position of a group."""
    return CommittedOffset(key, offset, -1, "")
