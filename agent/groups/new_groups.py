"""Whether there may be a group of an id that this agent has not in memory.

Place: asked by held_groups.py before it claims a group, because a claim makes a row.
Invariant: a group that is stored is never refused: one with a longer id than new ones may have, and one where the
cluster has its most offsets and groups.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_rows import COMMITTED_OFFSETS, RowLimits
from headrace.agent.limits.stored_ids import is_long, may_be_stored
from headrace.metastore.api.groups import GroupApi


class NewGroups:
    """Judges ids. `rows`: limits on what is stored; None: there are none."""

    def __init__(self, api: GroupApi, rows: RowLimits | None) -> None:
        self._api = api
        self.rows = rows

    async def refusal(self, group_id: str) -> ErrorCode:
        """Return NONE if the group may be claimed. HeadraceError if the metastore does not answer."""
        has_room = self.rows is None or await self.rows.has_room(COMMITTED_OFFSETS)
        if (has_room and not is_long(group_id)) or await self._is_stored(group_id):
            return ErrorCode.none
        if is_long(group_id):
            return ErrorCode.invalid_group_id
        if self.rows is not None:
            self.rows.refused(COMMITTED_OFFSETS)
        return ErrorCode.policy_violation

    async def _is_stored(self, group_id: str) -> bool:
        return may_be_stored(group_id) and bool(await self._api.list_groups([group_id]))
