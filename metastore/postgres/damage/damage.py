"""Damaged extents in Postgres: implements metastore.api.damage.DamageApi.

Place: under the compactor's jobs and planners.
Invariant: each call is one statement, and what it changes is fenced by the job's lease in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.damage import DamagedExtent, DamageKind
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
from headrace.metastore.postgres.statement import Pool, Statement

_MARK_DAMAGED = Statement("mark_damaged", writes=True)
_DAMAGED_PARTS = Statement("damaged_parts", writes=False)

WHY_CHARACTERS = 500
"""Of a reason, as it is stored."""


class PostgresDamage:
    """Implements metastore.api.damage.DamageApi."""

    pool: Pool

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        if not extents:
            return
        await _MARK_DAMAGED.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            file_ids=pack_uuids([one.file_id for one in extents]),
            positions=pack_int8(np.array([one.position for one in extents])),
            keys=pack_int8(np.array([one.partition_key for one in extents])),
            last=pack_int8(np.array([one.last_offset for one in extents])),
            kinds=[int(one.kind) for one in extents],
            why=[one.why[:WHY_CHARACTERS].replace("\0", "?") for one in extents],
        )

    async def damaged_parts(self, ends: Sequence[tuple[int, int]]) -> list[DamagedExtent]:
        if not ends:
            return []
        keys, wanted = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        rows = await _DAMAGED_PARTS.rows(self.pool, keys=pack_int8(keys), ends=pack_int8(wanted))
        return [DamagedExtent(*row[:-2], DamageKind(row[-2]), row[-1]) for row in rows]
