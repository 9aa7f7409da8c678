"""Control records: the commit and abort markers of transactions, as rows without an object. Pure.

Place: end_transaction.sql writes a marker as an extent of one offset, which agent/fetch renders as Kafka's control
batch.
Invariant: a marker's row says all that its batch holds: file_id has producer id, epoch and outcome, position has the
time. No file has such an id: its version is 0, those of segment files are 7 and 8.
Source: KIP-98 (control batches). The coordinator epoch in the record is 0: no epoch of a coordinator exists here.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from headrace.metastore.api.read import Extent
from headrace.storage.records.codec import Record, encode_control_batch

MARKER_BYTES = 78
"""Size of every marker's batch; the length of its extent."""
_FILE_ID = struct.Struct(">4xhxBq")
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The outcome of a producer's transaction in one partition."""

    producer_id: int
    epoch: int
    commits: bool


def marker_file_id(marker: Marker) -> uuid.UUID:
    """The file_id of a marker's extent; as marker_file_id in SQL."""
    return uuid.UUID(bytes=_FILE_ID.pack(marker.epoch, marker.commits, marker.producer_id))


def marker_of(source: uuid.UUID) -> Marker | None:
    """The marker that the source of an extent means; None for a file."""
    if source.bytes[6] >> 4:
        return None
    epoch, commits, producer_id = _FILE_ID.unpack(source.bytes)
    return Marker(producer_id, epoch, bool(commits))


def render_marker(extent: Extent) -> bytes:
    """The control batch of a marker's extent, with its offset and leader epoch."""
    marker = marker_of(extent.source)
    assert marker is not None, "not a marker"
    record = Record(
        offset=extent.base_offset,
        timestamp=extent.position,
        key=_KEY.pack(0, marker.commits),
        value=_VALUE.pack(0, 0),
    )
    return encode_control_batch(
        record, producer_id=marker.producer_id, producer_epoch=marker.epoch, leader_epoch=extent.leader_epoch
    )
