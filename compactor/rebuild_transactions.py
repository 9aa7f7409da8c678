"""What of a partition's batches a rebuild may show, by what the bucket says of their transactions.

Place: between the scan and the placement of a rebuild (rebuild.py).
Invariant: a batch of a transaction is placed only if the bucket says that it was committed: one that was aborted, was
open, or ended just before the metastore was lost is left out, in every copy. Markers are placed at their offsets, which
are known exactly, so that what is written next to them keeps its offsets too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.compactor.rebuild_place import ScannedBatch
from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.transactions.markers import MARKER_BYTES, Marker, marker_file_id
from headrace.metastore.transactions.outcomes import PartitionOutcomes, list_outcomes, read_outcomes
from headrace.storage.objects.store import ObjectStore

NONE_KNOWN = PartitionOutcomes()


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
