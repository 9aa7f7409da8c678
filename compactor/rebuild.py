"""Rebuilds a metastore's index from the bucket alone: what is possible after the last backup is lost.

Place: `headrace audit --rebuild-index`, on an empty metastore, while no agent runs.
Invariant: every batch of a readable file is readable again, once, unless it is of a transaction that is not known to be
committed (aborted, open, or ended just before the metastore was lost), or of an attempt of a bulk write that was not
decided (Spark stores files of attempts that fail, too; a bucket of a version that recorded no decisions shows all of
them, as counted): at the offset that a merged file contains, else at an estimated offset, which is counted
(rebuild_place.py); LOST lists what cannot be recovered. The bucket is not changed. Every byte is read once, and about
400 bytes per batch stay in memory. Markers are placed at their offsets, which are known exactly, so that what is
written next to them keeps its offsets too. If the process crashes, format a new metastore and run it again.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.compactor.audit import OnProgress
from headrace.compactor.lost import joined
from headrace.compactor.moved import unmoved
from headrace.compactor.rebuild_place import Placement, ScannedBatch, guess, settle
from headrace.compactor.rebuild_scan import Scan, recognise_records, scan
from headrace.metastore.api.files import FoundFile
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.metastore.api.read import Extent, is_in_file
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import split_partition_key
from headrace.metastore.life.forgotten import OffsetRange, read_forgotten
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.recorded_objects import PREFIX, are_recorded, list_in_force, read_entries
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id
from headrace.metastore.transaction_outcomes import PartitionOutcomes, list_outcomes, read_outcomes
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import level_of, term_ms
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads

ROWS_PER_CALL = 2_000
EXTENT_BYTES = 8 * 1024 * 1024
"""Bytes of an extent, as in compactor/merge.py: a reader that starts in the middle of an extent iterates from the
extent's first batch.
"""
LOST = (
    "offsets of records that no merged file contains: estimated from the creation times of files and the gaps,"
    " as counted above; a consumer may see such a record at another offset than before",
    "committed offsets of consumer groups, and what share groups have done",
    "topic names and configs: a topic that the metastore does not know is called recovered-<its id>",
    "records of inline files that were not moved: those of the last minute or two, longer if merges were behind; what"
    " agents recorded of them when they stopped is listed above",
    "batches that commits dropped: readable again, except duplicates of idempotent producers",
    "records that retention and DeleteRecords removed: readable again if their object still exists",
    "records of transactions that were open, or that ended less than about 20 s before the loss: left out, as counted"
    " above; records of aborted transactions are left out, too, also for readers with read_uncommitted",
    "records of Spark's writes that were decided less than about 20 s before the loss, by a driver that was killed"
    " before it recorded them: left out, as counted above, like those of attempts that were never decided. A bucket"
    " that only a version without this record used has no record: all attempts are readable again, as counted above",
    "transactional ids: producers begin again with InitProducerId",
    "producer state: a retry of a batch stored before the rebuild is appended again",
    "ACLs, quotas, SCRAM credentials",
)
"""Information that is not in the files."""
NONE_KNOWN = PartitionOutcomes()


@dataclass(slots=True)
class Rebuilt:
    """The result for the bucket's files."""

    files: int = 0
    extents: int = 0
    live_bytes: int = 0
    records: int = 0
    guessed_records: int = 0
    """Number of these records with an unknown original offset, because no merged file contains them."""
    repeated_batches: int = 0
    """Flushed batches with records that are also in merged files, or that an idempotent producer sent before."""
    aborted_records: int = 0
    """Number of records of transactions that were aborted: left out."""
    unknown_records: int = 0
    """Number of records of transactions that were open, or that ended just before the metastore was lost: left out."""
    undecided_records: int = 0
    """Number of records of bulk writes that are not known to be decided: left out."""
    unsure_records: int = 0
    """Number of records of bulk writes, from a bucket that does not say which attempts were decided: readable, maybe
    several times.
    """
    topics: list[str] = field(default_factory=list)
    """Topics created with generated names."""
    unsound: list[tuple[uuid.UUID, str]] = field(default_factory=list)
    """Files that cannot be read, and why. Their bytes are not changed."""
    unmoved: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, partition, first and last offset of acknowledged records in inline files that were not moved: lost."""
    homeless: int = 0
    """Partitions beyond what their topic has here."""


async def rebuild_index(
    metastore: Metastore, reads: VerifiedReads, keeper: LifeKeeper, on_progress: OnProgress
) -> Rebuilt:
    """Add every file of the bucket to the metastore. InvalidError unless the metastore has no files.

    It begins a new life of the metastore: nothing that the lost one handed out is handed out again.
    """
    if (await metastore.reports.file_totals()).total:
        raise InvalidError("the metastore already has segment files: rebuild the index in a new, formatted metastore")
    await keeper.begin_anew("rebuilt from the bucket")
    read = await scan(reads, on_progress)
    found = Rebuilt(files=len(read.files), unsound=read.unsound)
    outcomes = await all_outcomes(reads.store)
    writes = await bulk_files(reads.store, read)
    image = await _with_topics(metastore, read, found)
    lost = UnmovedRanges(await read_forgotten(reads.store), read)
    extents: list[Extent] = []
    for name in sorted(read.partitions):
        key = image.topics_by_id[name.topic_id].key(name.partition_index)
        if key is None:
            found.homeless += 1
            continue
        batches = read.partitions.pop(name)
        found.undecided_records += records_in(batches, writes.undecided)
        found.unsure_records += records_in(batches, writes.unsure)
        decided = [batch for batch in batches if batch.file not in writes.undecided]
        shown = visible(decided, outcomes.get(name, NONE_KNOWN))
        found.aborted_records += shown.aborted
        found.unknown_records += shown.unknown
        placement = settle(shown.batches)
        await recognise_records(reads, read, placement)
        lost.take(name, placement)
        guess(placement)
        found.records += sum(batch.records for batch in placement.batches.values() if batch.marker is None)
        found.guessed_records += placement.guessed_records
        found.repeated_batches += placement.repeated_batches
        extents += _extents(key, placement, read)
        on_progress("partitions", 0, 0)
    await _name(metastore, read, extents)
    found.unmoved = lost.as_offsets({topic_id: topic.name for topic_id, topic in image.topics_by_id.items()})
    found.extents, found.live_bytes = len(extents), sum(extent.length for extent in extents)
    return found


class UnmovedRanges:
    """Offsets that agents knew to be committed in inline files, and that no file has."""

    def __init__(self, fed: Mapping[uuid.UUID, Iterable[OffsetRange]], read: Scan) -> None:
        self._ranges = unmoved(fed, (file.file_id for file in read.files))
        self._names = read.names

    def take(self, name: PartitionName, placement: Placement) -> None:
        """Leave out what has a place, before others are estimated."""
        for key, ranges in self._ranges.items():
            if self._names.get(key) == name:
                self._ranges[key] = [
                    r for r in ranges if placement.is_free(r.base_offset, r.last_offset - r.base_offset + 1)
                ]

    def as_offsets(self, topics: Mapping[uuid.UUID, str]) -> list[tuple[str, int, int, int]]:
        """Topic, partition, first and last offset; neighbours as one."""
        found = []
        for key, ranges in sorted(self._ranges.items()):
            number, index = split_partition_key(key)
            name = self._names.get(key)
            topic = (
                f"(topic number {number}, of which the bucket has no file)" if name is None else topics[name.topic_id]
            )
            found += [(topic, index, *ends) for ends in joined((r.base_offset, r.last_offset) for r in ranges)]
        return found


async def _with_topics(metastore: Metastore, read: Scan, found: Rebuilt) -> MetadataImage:
    """The image after every topic of the files exists."""
    image = await load_image(metastore.cluster)
    counts: Counter[uuid.UUID] = Counter()
    for topic_id, index in read.partitions:
        counts[topic_id] = max(counts[topic_id], index + 1)
    missing = [
        NewTopic(f"recovered-{topic_id}", topic_id, count, {})
        for topic_id, count in sorted(counts.items())
        if topic_id not in image.topics_by_id
    ]
    if missing and not await metastore.topics.create_topics(image.offset, missing):
        raise InvalidError("the metadata log changed: another process uses this metastore")
    found.topics = [topic.name for topic in missing]
    return await load_image(metastore.cluster)


def _extents(key: int, placement: Placement, read: Scan) -> Iterator[Extent]:
    """Yield the extents of one partition, by offset. Batches that are neighbours in a file and in the log become one
    extent; each marker is one. Markers before the first batch are left out: they would end nothing.
    """
    before: Extent | None = None
    for offset in placement.offsets:
        batch = placement.batches[offset]
        if before is None and batch.marker is not None:
            continue
        extent = _extent(key, offset, batch, read)
        if before is None:
            before = extent
        elif _joins(before, extent):  # no marker does: it is in no file
            before = before._replace(
                last_offset=extent.last_offset,
                length=before.length + extent.length,
                max_timestamp=max(before.max_timestamp, extent.max_timestamp),
            )
        else:
            yield before
            before = extent
    if before is not None:
        yield before


def _extent(key: int, offset: int, batch: ScannedBatch, read: Scan) -> Extent:
    """Return the extent of one batch, or of one marker, which is in no file."""
    if batch.marker is not None:
        source, last_offset, max_timestamp = batch.marker, offset, -1
    else:
        source, last_offset = read.files[batch.file].file_id, offset + batch.records - 1
        max_timestamp = batch.max_timestamp
    return Extent(
        partition_key=key,
        base_offset=offset,
        last_offset=last_offset,
        source=source,
        position=batch.position,
        length=batch.length,
        leader_epoch=0,
        max_timestamp=max_timestamp,
    )


def _joins(last: Extent, new: Extent) -> bool:
    return (
        new.file_id == last.file_id
        and is_in_file(last)
        and new.position == last.position + last.length
        and new.base_offset == last.last_offset + 1
        and last.length + new.length <= EXTENT_BYTES
    )


async def _name(metastore: Metastore, read: Scan, extents: list[Extent]) -> None:
    """Files first: a reader of an extent must find its file."""
    live: Counter[uuid.UUID] = Counter()
    for extent in extents:
        live[extent.source] += extent.length
    files = [FoundFile(f.file_id, level_of(f.file_id), f.size, f.body_bytes, live[f.file_id]) for f in read.files]
    for start in range(0, len(files), ROWS_PER_CALL):
        await metastore.files.rebuild_files(files[start : start + ROWS_PER_CALL])
    for start in range(0, len(extents), ROWS_PER_CALL):
        await metastore.files.rebuild_extents(extents[start : start + ROWS_PER_CALL])


class BulkFiles(NamedTuple):
    """Indexes of files in the scan. `unsure`: shown, but it is not known whether their attempt was decided."""

    undecided: Container[int]
    unsure: Container[int]


async def bulk_files(store: ObjectStore, found: Scan) -> BulkFiles:
    """Return what the bucket says. CorruptError if an object is damaged."""
    of_writes = {number: file.file_id for number, file in enumerate(found.files) if term_ms(file.file_id)}
    if not of_writes:
        return BulkFiles((), ())
    if not await are_recorded(store):
        return BulkFiles((), of_writes.keys())
    decided: set[uuid.UUID] = set()
    for one in await list_in_force(store, PREFIX):
        decided.update(await read_entries(store, one.key, uuid.UUID))
    return BulkFiles({number for number, file_id in of_writes.items() if file_id not in decided}, ())


def records_in(batches: Sequence[ScannedBatch], files: Container[int]) -> int:
    """Return how many records of these files are among the batches."""
    return sum(batch.records for batch in batches if batch.file in files)


class Visible(NamedTuple):
    """`batches`: what may be placed, markers too. The others in records."""

    batches: list[ScannedBatch]
    aborted: int
    unknown: int


async def all_outcomes(store: ObjectStore) -> dict[PartitionName, PartitionOutcomes]:
    """Return what the bucket says, by partition. CorruptError if an object is damaged."""
    found: dict[PartitionName, list[TransactionOutcome]] = defaultdict(list)
    for one in await list_outcomes(store):
        for outcome in await read_outcomes(store, one.key):
            found[PartitionName(outcome.topic_id, outcome.partition_index)].append(outcome)
    return {name: PartitionOutcomes(outcomes) for name, outcomes in found.items()}


def visible(batches: Sequence[ScannedBatch], ended: PartitionOutcomes) -> Visible:
    """Return what a rebuild may show of a partition."""
    kept: list[ScannedBatch] = []
    records = {False: 0, None: 0}
    for batch in batches:
        committed = True if batch.owner is None else ended.committed(batch.owner)
        if committed:
            kept.append(batch)
        else:
            records[committed] += batch.records
    if kept:
        kept += map(_marker, ended.outcomes)
    return Visible(kept, records[False], records[None])


def _marker(outcome: TransactionOutcome) -> ScannedBatch:
    """Place a marker as a batch of a merged file: its offset is known."""
    marker = marker_file_id(Marker(outcome.producer_id, outcome.epoch, outcome.commits))
    content = marker.bytes + outcome.marker_offset.to_bytes(8, "big")
    return ScannedBatch(
        file=-1,
        position=outcome.ended_ms,
        length=MARKER_BYTES,
        level=1,
        born_ms=outcome.ended_ms,
        base_offset=outcome.marker_offset,
        records=1,
        max_timestamp=outcome.ended_ms,
        is_idempotent=False,
        content=content,
        marker=marker,
    )
