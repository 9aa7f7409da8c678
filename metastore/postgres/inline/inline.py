"""Inline files in Postgres: read, and their slots.

Place: under InlineStore and housekeeping; implements metastore.api.inline.InlineApi. Their commit is
commit/commit.py's.
Invariant: reads are on the connections of readers, so that they take none from commits.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.inline import InlineApi, InlineRange
from headrace.metastore.postgres.packing import pack_int4, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_READ_INLINE = Statement("read_inline", writes=False)


class PostgresInline(PostgresNoun):
    """Implements metastore.api.inline.InlineApi."""

    inline_state = calls(InlineApi.inline_state, writes=False)
    rotate_inline_slots = calls(InlineApi.rotate_inline_slots, writes=True)
    inline_bytes = calls(InlineApi.inline_bytes, writes=False, by_readers=True)
    ask_inline_move = calls(InlineApi.ask_inline_move, writes=True)

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        if not ranges:
            return []
        ranges = list(ranges)
        rows = await _READ_INLINE.rows(
            self.readers,
            file_id=pack_uuids([each.file_id for each in ranges]),
            start=pack_int4([each.start for each in ranges]),
            length=pack_int4([each.length for each in ranges]),
        )
        return [body for (body,) in rows]
