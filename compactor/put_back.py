"""Decide which lost records can be put back: batches of files with a commit that agents recorded before they forgot it.

Place: `headrace audit --lost --put-back`; the plan here, the produce requests in cli/lost.py.
Invariant: only flushed files with recorded extents are used, and of these only the partitions that have as many records
as those extents: then every batch was appended, and acknowledged or about to be. If a file has more records of a
partition, the commit dropped a batch, as a duplicate or because it refused it, and what is recorded does not say which:
this partition's part is left out. So are batches of transactions: each of these was aborted by the life that lost it.
Merged files are copies and are left out, but for ranges of inline files that a merge has moved (moved.py): each of
their batches was appended, at the offset that it has there. A batch that its client sent again is left out (SentAgain):
the log after the loss, or the plan, has its producer id, epoch and sequence, or the same records of that producer under
another epoch, which is how Java sends what was lost. The plan of a life, and the producer that carries it out, are one
object in the bucket, written before the first batch is sent: a run that was interrupted continues with the same
sequences, and a finished one is never repeated. All that is read is verified: an altered byte could hide that a batch
was sent again.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from headrace.metastore.api.read import ExtentQuery, IndexApi, is_in_file
from headrace.metastore.life.forgotten import OffsetRange
from headrace.metastore.life.moved import MovedRange
from headrace.metastore.log.image import TopicImage
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.header import HEADER_BYTES, BatchHeader
from headrace.storage.segment.format import Footer, PartitionEntry
from headrace.storage.segment.reader import verify_segment, walk_batches
from headrace.storage.segment.rereading import VerifiedReads

PREFIX = "metastore/put-back/"

Identity = tuple[int, int, int, int]
"""Partition key, producer id, epoch and first sequence."""
Content = tuple[int, int, bytes]
"""Partition key, producer id, and a hash of what no epoch changes: the time and the bytes of the records."""


class PlannedBatch(msgspec.Struct, frozen=True):
    """Source and destination of a batch; positions in bytes of the file."""

    file_id: uuid.UUID
    topic: str
    partition_index: int
    position: int
    length: int
    records: int
    source: uuid.UUID | None = None
    """The inline file that a merge has moved to `file_id`; None: the batch was committed in `file_id`."""


class PutBack(msgspec.Struct):
    """What is put back in a life of the metastore, by which producer."""

    life: int
    producer_id: int
    producer_epoch: int
    batches: list[PlannedBatch]
    is_done: bool = False


class Planned(NamedTuple):
    """`dropped`: records by (topic, partition index) of parts of files in which the commit dropped a batch.
    `transactional`: those of transactions."""

    batches: list[PlannedBatch]
    dropped: Counter[tuple[str, int]]
    transactional: Counter[tuple[str, int]]


class SentAgain:
    """The idempotent batches that the log has, or will have by the plan. Pure.

    After a batch was lost, its producer's next one gets OUT_OF_ORDER_SEQUENCE_NUMBER. Java then raises its epoch and
    sends what has no answer again, from sequence 0: the same header but for epoch and sequence, and the same bytes of
    records. A producer may also send equal records twice, so a batch here covers one lost batch of each other
    epoch. Within an epoch the sequence decides. The time of the first record counts: batches of a constant value differ
    by it.
    """

    def __init__(self) -> None:
        self._identities: set[Identity] = set()
        self._epochs: defaultdict[Content, list[set[int]]] = defaultdict(list)
        """For each batch, the epochs under which it was sent."""

    def add(self, key: int, header: BatchHeader, batch: memoryview) -> None:
        """Note a complete batch of the partition; one without a producer id cannot be recognised."""
        if header.producer_id >= 0:
            self._identities.add(_identity(key, header))
            self._epochs[_content(key, header, batch)].append({header.producer_epoch})

    def takes(self, key: int, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether this lost batch is here; under another epoch, that one covers it from now on."""
        if header.producer_id < 0:
            return False
        if _identity(key, header) in self._identities:
            return True
        for epochs in self._epochs[_content(key, header, batch)]:
            if header.producer_epoch not in epochs:
                epochs.add(header.producer_epoch)
                return True
        return False


async def plan_put_back(
    api: IndexApi,
    reads: VerifiedReads,
    fed: Mapping[uuid.UUID, Iterable[OffsetRange]],
    topics: Mapping[uuid.UUID, TopicImage],
    moved: Mapping[uuid.UUID, Sequence[MovedRange]] | None = None,
) -> Planned:
    """The batches in the order of their lost offsets, per partition. `fed`: the lost files with recorded extents.
    `moved`: ranges of lost inline files, by merged file. Partitions that do not exist any more are left out. Reads each
    file once, and the log from the loss on."""
    moved = moved or {}
    places = [place[:2] for ranges in fed.values() for place in ranges]
    places += [place[1:3] for ranges in moved.values() for place in ranges]
    first_lost: dict[int, int] = {}
    for key, offset in places:
        first_lost[key] = min(offset, first_lost.get(key, offset))
    planning = _Planning(topics)
    for key, offset in first_lost.items():
        await _read_log(api, reads, key, offset, planning.known)
    for file_id, ranges in sorted(fed.items(), key=lambda item: min(lost.base_offset for lost in item[1])):
        planning.add_committed(file_id, ranges, *await read_whole(reads, file_id))
    for file_id, lost in sorted(moved.items(), key=lambda item: min(place.base_offset for place in item[1])):
        planning.add_moved(file_id, lost, *await read_whole(reads, file_id))
    batches = [batch for _, _, batch in sorted(planning.batches, key=lambda p: p[:2])]
    return Planned(batches, planning.dropped, planning.transactional)


class _Planning:
    """Collects batches, file by file. Pure."""

    def __init__(self, topics: Mapping[uuid.UUID, TopicImage]) -> None:
        self._topics = topics
        self.known = SentAgain()
        self.batches: list[tuple[int, int, PlannedBatch]] = []
        """(partition key, lost offset or that of the file's first record, batch)."""
        self.dropped, self.transactional = Counter[tuple[str, int]](), Counter[tuple[str, int]]()

    def add_committed(
        self, file_id: uuid.UUID, ranges: Iterable[OffsetRange], body: memoryview, footer: Footer
    ) -> None:
        """Add a flushed file."""
        bases = {key: min(r.base_offset for r in ranges if r.partition_key == key) for key, *_ in ranges}
        for entry in footer.partitions:
            topic, base = self._topic(entry), bases.get(entry.partition_key)
            if topic is None or base is None:
                continue
            if entry.record_count != sum(
                r.last_offset - r.base_offset + 1 for r in ranges if r.partition_key == entry.partition_key
            ):
                self.dropped[topic.name, entry.partition_index] += entry.record_count
                continue
            for position, header in walk_batches(body[: entry.position + entry.length], entry.position):
                place = PlannedBatch(file_id, topic.name, entry.partition_index, position, header.size, 0)
                self._add(entry.partition_key, base, place, header, body)

    def add_moved(self, file_id: uuid.UUID, lost: Sequence[MovedRange], body: memoryview, footer: Footer) -> None:
        """Add what a merged file has of lost inline files."""
        for entry in footer.partitions:
            topic = self._topic(entry)
            mine = [place for place in lost if place.partition_key == entry.partition_key]
            if topic is None or not mine:
                continue
            for position, header, source in lost_batches(body, entry, mine):
                place = PlannedBatch(file_id, topic.name, entry.partition_index, position, header.size, 0, source)
                self._add(entry.partition_key, header.base_offset, place, header, body)

    def _topic(self, entry: PartitionEntry) -> TopicImage | None:
        topic = self._topics.get(entry.topic_id)
        return topic if topic is not None and topic.has(entry.partition_index) else None

    def _add(self, key: int, order: int, place: PlannedBatch, header: BatchHeader, body: memoryview) -> None:
        """Add a batch, unless its transaction was aborted, or its client has sent it again."""
        if header.is_transactional:
            self.transactional[place.topic, place.partition_index] += header.record_count
            return
        batch = body[place.position : place.position + place.length]
        if self.known.takes(key, header, batch):
            return
        self.known.add(key, header, batch)
        self.batches.append((key, order, msgspec.structs.replace(place, records=header.record_count)))


def lost_batches(
    body: memoryview, entry: PartitionEntry, lost: Sequence[MovedRange]
) -> Iterator[tuple[int, BatchHeader, uuid.UUID]]:
    """(position, header, inline file) of each batch of a merged file that is in one of these ranges of its partition.
    CorruptError if the bytes are not batches. Pure."""
    ranges = sorted(lost, key=lambda place: place.base_offset)
    starts = [place.base_offset for place in ranges]
    for position, header in walk_batches(body[: entry.position + entry.length], entry.position):
        before = bisect_right(starts, header.base_offset)
        if before and header.base_offset + header.last_offset_delta <= ranges[before - 1].last_offset:
            yield position, header, ranges[before - 1].source


async def read_whole(reads: VerifiedReads, file_id: uuid.UUID) -> tuple[memoryview, Footer]:
    """A file's bytes, each of them verified, and its footer. DamagedError, BadTransferError; else as the store."""

    def check(body: memoryview) -> tuple[memoryview, Footer]:
        return body, verify_segment(body)

    return await reads.read(object_key(file_id), None, check, f"file={file_id}")


async def read_put_back(store: ObjectStore, life: int) -> PutBack | None:
    """Return what was begun in this life. CorruptError if its object is damaged."""
    try:
        return msgspec.json.decode(await read_agreed(store, _key(life)), type=PutBack)
    except NotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the plan of records to be put back is damaged: key={_key(life)} {error}") from error


async def begin_put_back(store: ObjectStore, plan: PutBack) -> None:
    """AlreadyExistsError if another run has begun it meanwhile."""
    await store.put(_key(plan.life), msgspec.json.encode(plan), if_absent=True)


async def end_put_back(store: ObjectStore, plan: PutBack) -> None:
    """Every batch is stored."""
    plan.is_done = True
    await store.put(_key(plan.life), msgspec.json.encode(plan))


async def files_put_back(store: ObjectStore, *, finished: bool = False) -> set[uuid.UUID]:
    """Return the files that were put back, of every life: those that their commits named. With `finished` only those
    of runs that stored all."""
    found: set[uuid.UUID] = set()
    async for info in store.list_objects(PREFIX):
        plan = await read_put_back(store, int(info.key.removeprefix(PREFIX).removesuffix(".json")))
        if plan is not None and (plan.is_done or not finished):
            found |= {batch.source or batch.file_id for batch in plan.batches}
    return found


async def _read_log(api: IndexApi, reads: VerifiedReads, key: int, offset: int, known: SentAgain) -> None:
    """Add the batches that the partition has now at `offset` and above."""
    while True:
        (answer,) = await api.find_extents([ExtentQuery(key, offset, 1 << 40)])
        if not answer.extents:
            return
        for extent in answer.extents:
            if is_in_file(extent):
                for batch in await reads.batches(extent, leader_epoch=extent.leader_epoch):
                    known.add(key, batch.header, batch.data)
        offset = answer.extents[-1].last_offset + 1


def _identity(key: int, header: BatchHeader) -> Identity:
    return (key, header.producer_id, header.producer_epoch, header.base_sequence)


def _content(key: int, header: BatchHeader, batch: memoryview) -> Content:
    fixed = (header.codec, header.last_offset_delta, header.record_count, header.base_timestamp)
    digest = blake2b(repr(fixed).encode(), digest_size=16)
    digest.update(batch[HEADER_BYTES:])
    return (key, header.producer_id, digest.digest())


def _key(life: int) -> str:
    return f"{PREFIX}{life:010}.json"
