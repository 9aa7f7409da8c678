"""What clients read, batch by batch, and how it is judged at first sight.

A poll keeps what one partition of one Fetch response held; a listing what one ListOffsets answer said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.records.header import HEADER_BYTES, BatchHeader, batch_crc, read_header
from tests.simulation.messages import Batch, Member
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind

if TYPE_CHECKING:
    from tests.simulation.world import World


class Entry(NamedTuple):
    """One sent batch as it was read. `identity`: as the header tells, or as was committed what compaction merged."""

    base_offset: int
    last_offset: int
    batch: Batch
    identity: tuple[int, int, int]
    max_timestamp: int
    stored_base: int
    stored_last: int
    """Offsets of the stored batch that holds it, perhaps merged with others."""


@dataclass(slots=True)
class Poll:
    """One partition of a Fetch response. Times in virtual seconds."""

    reader: str
    node_id: int
    process: int
    """The life of the agent."""
    place: Place
    position: int
    sent_at: float
    answered_at: float
    high_watermark: int
    entries: list[Entry]


@dataclass(slots=True)
class Listing:
    """One ListOffsets answer. `timestamp` as asked: -1 latest, -2 earliest, else milliseconds."""

    place: Place
    timestamp: int
    sent_at: float
    answered_at: float
    offset: int


def read_entries(world: World, data: memoryview, where: str) -> list[Entry]:
    """The batches in `data`, under the offsets they carry; what is not ours or broken is reported."""
    entries = []
    at = 0
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            world.report(Kind.CORRUPT, f"{where}: half a header at {at}")
            break
        header = read_header(data, at)
        raw = data[at : at + header.size]
        at += max(header.size, HEADER_BYTES)
        members = world.messages.open(raw)
        if not members or header.size != len(raw) or batch_crc(raw) != header.crc:
            world.report(Kind.CORRUPT, f"{where}: not a batch that any producer sent: offset={header.base_offset}")
        entries += [entry_of(world, member, header, header.base_offset) for member in members]
    for entry in entries:
        if all(attempt.identity != entry.identity for attempt in entry.batch.attempts):
            world.report(Kind.CORRUPT, f"{where}: {entry.batch} was never sent as {entry.identity}")
    return entries


def entry_of(world: World, member: Member, header: BatchHeader, base_offset: int) -> Entry:
    """The member of a stored batch with this real base offset."""
    batch, before = member
    first = base_offset + before
    identity = identity_of(header)
    if header.producer_id < 0:
        identity = world.database.stripped.get((batch.place.key, first), identity)
    max_timestamp = header.max_timestamp if batch.place.topic.stamps else batch.timestamp + batch.count - 1
    last = base_offset + header.last_offset_delta
    return Entry(first, first + batch.count - 1, batch, identity, max_timestamp, base_offset, last)


def identity_of(header: BatchHeader) -> tuple[int, int, int]:
    """Producer id, epoch and sequence."""
    return header.producer_id, header.producer_epoch, header.base_sequence
