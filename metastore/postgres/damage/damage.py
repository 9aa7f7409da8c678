"""Damaged extents in Postgres: part of CompactionApi.

Place: under the compactor's jobs and planners.
Invariant: each call is one statement, and what it changes is fenced by the job's lease in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.metastore.api.compaction import CompactionApi, DamagedExtent, DamageKind, FoundDamage, ListedDamage
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent
from headrace.metastore.postgres.cleaning.cleaning import parts_below
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Pool, Statement

_MARK_DAMAGED = Statement("mark_damaged", writes=True)
_DAMAGED_PARTS = Statement("damaged_parts", writes=False)
_NOTE_DAMAGE = Statement("note_damage", writes=True)
_LIST_DAMAGE = Statement("list_damage", writes=False)

WHY_CHARACTERS = 500
"""The most characters of a reason, as it is stored."""


class PostgresDamage(PostgresNoun):
    """Implements what CompactionApi says of damage."""

    clear_damage = calls(CompactionApi.clear_damage, writes=True)
    repair_sources = calls(
        CompactionApi.repair_sources, writes=False, file_id="damaged.file_id", key="damaged.partition_key"
    )

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        if extents:
            await _MARK_DAMAGED.row(self.pool, job_id=token.job_id, epoch=token.epoch, **_columns(extents))

    async def damaged_parts(self, ends: Sequence[tuple[int, int]]) -> list[DamagedExtent]:
        if not ends:
            return []
        rows = await _DAMAGED_PARTS.rows(self.pool, **parts_below(ends))
        return [DamagedExtent._make((*row[:-2], DamageKind(row[-2]), row[-1])) for row in rows]

    async def note_damage(self, found: Sequence[FoundDamage]) -> None:
        if not found:
            return
        await _NOTE_DAMAGE.row(
            self.pool,
            **_columns([one.extent for one in found]),
            first_damaged=pack_int8(np.array([one.first_offset for one in found])),
            last_damaged=pack_int8(np.array([one.last_offset for one in found])),
        )

    async def list_damage(self, limit: int) -> tuple[list[ListedDamage], int]:
        return await list_damage(self.pool, limit)


def _columns(extents: Sequence[DamagedExtent]) -> dict[str, Any]:
    """The parameters that damaged extents are, one element each."""
    return {
        "file_ids": pack_uuids([one.file_id for one in extents]),
        "positions": pack_int8(np.array([one.position for one in extents])),
        "keys": pack_int8(np.array([one.partition_key for one in extents])),
        "last": pack_int8(np.array([one.last_offset for one in extents])),
        "kinds": [int(one.kind) for one in extents],
        "why": [one.why[:WHY_CHARACTERS].replace("\0", "?") for one in extents],
    }


async def list_damage(pool: Pool, limit: int) -> tuple[list[ListedDamage], int]:
    """The damaged extents that are live, and how many there are in all; also for the doctor."""
    rows = await _LIST_DAMAGE.rows(pool, limit=limit)
    return [_listed(row) for row in rows], rows[0][-1] if rows else 0


def _listed(row: tuple[Any, ...]) -> ListedDamage:
    topic, index, file_id, position, length, key, base, last, epoch, time, kind, why, *rest, _ = row
    extent = Extent(key, base, last, file_id, position, length, epoch, time)
    return ListedDamage(topic, index, extent, DamageKind(kind), why, *rest)
