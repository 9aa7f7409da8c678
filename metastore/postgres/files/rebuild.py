"""An index made again from the bucket, in a metastore that lost its rows.

Place: `headrace audit --rebuild-index` (compactor/rebuild.py), while no agent runs; part of FileApi.
Invariant: files first, then their extents, of each partition in offset order.
If the process crashes between two calls, the metastore holds a part of the index: format a new one and start over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.files import FoundFile
from headrace.metastore.api.read import Extent
from headrace.metastore.postgres.packing import pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.file_id import born_ms

_REBUILD_FILES = Statement("rebuild_files", writes=True)
_REBUILD_EXTENTS = Statement("rebuild_extents", writes=True)


class PostgresRebuild(PostgresNoun):
    """Names files and their extents again."""

    async def rebuild_files(self, files: Sequence[FoundFile]) -> int:
        levels, sizes, body_bytes, live_bytes = np.array([file[1:] for file in files], dtype=np.int64).reshape(-1, 4).T
        (named,) = await _REBUILD_FILES.row(
            self.pool,
            ids=pack_uuids([file.file_id for file in files]),
            births=pack_int8(np.array([born_ms(file.file_id) for file in files], dtype=np.int64)),
            levels=pack_int4(levels),
            sizes=pack_int8(sizes),
            body_bytes=pack_int8(body_bytes),
            live_bytes=pack_int8(live_bytes),
        )
        return int(named)

    async def rebuild_extents(self, extents: Sequence[Extent]) -> None:
        rows = [(e.partition_key, e.base_offset, e.last_offset, e.position, e.length, e.max_timestamp) for e in extents]
        keys, bases, lasts, positions, lengths, times = np.array(rows, dtype=np.int64).reshape(-1, 6).T
        await _REBUILD_EXTENTS.row(
            self.pool,
            key=pack_int8(keys),
            base=pack_int8(bases),
            last=pack_int8(lasts),
            file=pack_uuids([extent.source for extent in extents]),
            position=pack_int8(positions),
            length=pack_int8(lengths),
            time=pack_int8(times),
        )
