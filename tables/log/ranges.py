"""Asks where a topic's log begins and ends now, for readers of committed records, and where leader epochs end.

Place: asked at the beginning of each round, before the policy.
Invariant: every number is the primary's. The end is asked before the leader epochs, and offsets never go back within a
life of the metastore, so a table is not taken to be ahead of a log that only grows meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import EpochQuery, IndexApi, OffsetKind, OffsetQuery
from headrace.metastore.log.image import TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import DataLossError, OptionError
from headrace.scan.offsets import first_offset_since
from headrace.scan.partitions import ScanPartition
from headrace.storage.segment.rereading import VerifiedReads
from headrace.tables.log.policy import LogBounds
from headrace.tables.state import UNKNOWN_EPOCH, TablePosition

EARLIEST, LATEST = "earliest", "latest"
_KINDS = (int(OffsetKind.EARLIEST), int(OffsetKind.LAST_STABLE), int(OffsetKind.LATEST))


async def log_ranges(
    metastore: Metastore, topic: TopicImage, positions: Mapping[int, TablePosition]
) -> tuple[dict[int, ScanPartition], dict[int, LogBounds]]:
    """The partitions that exist, and the log of each. DataLossError if the topic is deleted meanwhile."""
    partitions = partitions_of(topic)
    offsets = await _special_offsets(metastore.index, partitions)
    epochs = {
        p: positions[p].leader_epoch
        for p in partitions
        if p in positions and positions[p].leader_epoch != UNKNOWN_EPOCH
    }
    ends = await metastore.index.find_epoch_ends([EpochQuery(partitions[p].key, epoch) for p, epoch in epochs.items()])
    kept = {p: end.end_offset for p, end in zip(epochs, ends, strict=True) if end.known and end.end_offset >= 0}
    return partitions, {p: LogBounds(*offsets[p], kept.get(p)) for p in partitions}


def partitions_of(topic: TopicImage) -> dict[int, ScanPartition]:
    """The partitions that exist, also aliases, by index."""
    found = {}
    for index in topic.indexes:
        key = topic.key(index)
        assert key is not None, "an index of the topic has a key"
        found[index] = ScanPartition(topic.name, index, key, topic.topic_id)
    return found


async def start_positions(cluster: ScannedCluster, topic: TopicImage, start: str) -> dict[int, TablePosition]:
    """Return where a new table begins: `earliest`, `latest`, or the first record that is not older than so many ms."""
    partitions = partitions_of(topic)
    offsets = await _special_offsets(cluster.metastore.index, partitions)
    epochs = topic.leader_epochs
    if start == EARLIEST:
        return {p: TablePosition(first, epochs[p]) for p, (first, _, _) in offsets.items()}
    if start == LATEST:
        return {p: TablePosition(stable, epochs[p]) for p, (_, stable, _) in offsets.items()}
    found = {}
    reads = VerifiedReads(cluster.store, cluster.clock, cluster.rng)
    for index, partition in partitions.items():
        offset = await first_offset_since(
            cluster.metastore.index, reads, partition, start_timestamp(start), committed=True
        )
        found[index] = TablePosition(offsets[index][1] if offset is None else offset, epochs[index])
    return found


def start_timestamp(start: str) -> int:
    """The milliseconds of a start that is neither earliest nor latest. OptionError."""
    if not start.isdecimal():
        raise OptionError(f"a table begins at {EARLIEST}, {LATEST} or milliseconds since 1970: {start!r}")
    return int(start)


async def _special_offsets(
    metastore: IndexApi, partitions: Mapping[int, ScanPartition]
) -> dict[int, tuple[int, int, int]]:
    """The log start, the last stable offset and the high watermark of each partition, as of one call."""
    answers = await metastore.list_offsets(
        [OffsetQuery(partition.key, kind) for partition in partitions.values() for kind in _KINDS]
    )
    if gone := [each for each in answers if not each.known]:
        raise DataLossError(f"topic was deleted: partitions={len(gone) // len(_KINDS)}")
    triples = zip(*[iter(answer.offset for answer in answers)] * len(_KINDS), strict=True)
    return {p: (first, stable, high) for p, (first, stable, high) in zip(partitions, triples, strict=True)}
