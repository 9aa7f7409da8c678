"""Turn the batches of a closed file into the bytes of a segment file.

Place: first half of the upload. Pure.
Invariant: partitions are laid out by topic id, then index; the batches of a partition keep their order
of arrival, joined or not (join.py).
"""

from __future__ import annotations

from headrace.agent.produce.batches import Arrival, PlacedBatch
from headrace.agent.produce.join import Laid, join
from headrace.agent.produce.stages import Runs
from headrace.metastore.api.commit import StagedBatch
from headrace.storage.segment.writer import SegmentWriter

NO_PRODUCER = (-1, -1, -1)
"""The value for no producer id: clients then send any epoch and sequence."""


def lay_out(runs: Runs, merge_max_bytes: int = 0) -> tuple[bytes, list[PlacedBatch]]:
    """The file's bytes, and its batches by their byte positions.

    Small neighbours are joined up to `merge_max_bytes`; 0 joins nothing.
    """
    writer = SegmentWriter()
    placed: list[PlacedBatch] = []
    for run in sorted(runs.values(), key=_partition_of):
        for laid in join(run, merge_max_bytes):
            placed += _place(writer, laid, run[0].leader_epoch)
    return writer.finish(), placed


def _partition_of(run: list[Arrival]) -> tuple[int, int]:
    return run[0].topic_id.int, run[0].partition_index


def _place(writer: SegmentWriter, laid: Laid, leader_epoch: int) -> list[PlacedBatch]:
    """A partition's batches of one file share the leader epoch of the first: all are accepted, or none is."""
    data, header, members = laid
    first = members[0][1]
    topic_id, index, key = first[:3]
    position = writer.add(topic_id, index, key, data, header)
    producer = (
        (header.producer_id, header.producer_epoch, header.base_sequence) if header.producer_id >= 0 else NO_PRODUCER
    )
    batch = StagedBatch(
        key,
        position,
        len(data),
        header.record_count,
        header.highest_timestamp,
        *producer,
        leader_epoch,
        first.partition_count,
        first.transaction,
        first.keys,
        first.alias,
    )
    return [
        PlacedBatch(batch, before, arrival.owner, header.is_log_append_time, arrival.request, arrival.reply)
        for before, arrival in members
    ]
