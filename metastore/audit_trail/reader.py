"""Reads the audit trail from any offset on, wherever its records are.

Place: under the topic (agent/fetch/rendered/lifecycle_topic.py) and the tools; the metastore says where records are.
Invariant: a page has the records of the trail from the offset on without a gap, and says up to where. Records that
move to the bucket between two pages keep their offsets. If an object is deleted between the answer of the metastore and
the read, the page is read again: another object has its records, or the trail begins after them. An object that is
missing otherwise is an error, never a gap.
Memory: one block of an object at a time per call, at most BLOCK_BYTES_MAX stored and as much unpacked, and the object's
index. A page from the bucket costs two GETs of byte ranges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.segment_logs import LogEnds, SegmentLogApi
from headrace.metastore.api.segments import SegmentEvent
from headrace.metastore.audit_trail.objects import decode_block, decode_index
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.objects.store import ByteRange, ObjectStore

ATTEMPTS = 3
"""How often a page is read if its object is gone."""


class TrailPage(NamedTuple):
    """Records from an offset on. There is none between the last of them and `end_offset`."""

    ends: LogEnds
    rows: Sequence[SegmentEvent]
    end_offset: int


class AuditReader:
    """The store may be None for tools that were given no bucket: InvalidError once they need it."""

    def __init__(self, logs: SegmentLogApi, store: ObjectStore | None) -> None:
        self._logs, self._store = logs, store

    async def page(self, metadata_partition: int, offset: int, limit: int) -> TrailPage:
        """Return at most `limit` records; none below the trail's start. Errors of metastore and store."""
        missing = ""
        for _ in range(ATTEMPTS):
            found = await self._logs.read_audit_log(metadata_partition, offset, limit)
            if found.archived is None:
                return _bounded(found.ends, found.rows, limit, found.ends.next_audit_offset)
            first = max(offset, found.ends.audit_start)
            try:
                events = await self._block(found.archived, first)
            except NotFoundError:
                missing = found.archived.object_key
                continue
            rows = [event for event in events if event.audit_offset >= first][:limit]
            return _bounded(found.ends, rows, limit, events[-1].audit_offset + 1)
        raise UnavailableError(f"object of the audit trail is missing: key={missing}")

    async def events(self, metadata_partition: int, limit: int) -> AsyncIterator[SegmentEvent]:
        """All records, page by page."""
        page = await self.page(metadata_partition, 0, limit)
        while True:
            for event in page.rows:
                yield event
            if page.end_offset >= page.ends.next_audit_offset:
                return
            page = await self.page(metadata_partition, page.end_offset, limit)

    async def _block(self, archived: ArchivedAudit, first: int) -> list[SegmentEvent]:
        """The block with the first record from an offset on."""
        if self._store is None:
            raise InvalidError("the older part of the audit trail is in the bucket: set bucket (--bucket or --config)")
        place = ByteRange(archived.size - archived.index_size, archived.index_size)
        blocks = decode_index(await self._store.get(archived.object_key, place), archived)
        block = next(block for block in blocks if block.last_offset >= first)
        data = await self._store.get(archived.object_key, ByteRange(block.position, block.length))
        return decode_block(data, block, archived)


def _bounded(ends: LogEnds, rows: Sequence[SegmentEvent], limit: int, end_offset: int) -> TrailPage:
    return TrailPage(ends, rows, rows[-1].audit_offset + 1 if len(rows) == limit else end_offset)
