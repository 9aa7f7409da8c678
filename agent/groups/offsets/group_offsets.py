"""Committed offsets of groups: stored under the coordinator's epoch, read from the metastore.

Place: between the handlers of OffsetCommit and OffsetFetch and the metastore's GroupApi.
Invariant: an offset is stored only for a member that the group knows, by the group's holder; commits
of one group are stored in order, and a fetch shows every commit that came here before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.values import MemberRef
from headrace.metastore.api.groups import CommittedOffset, GroupApi
from headrace.protocol.errors import coordinator_error
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError

logger = logging.getLogger(__name__)


class GroupOffsets:
    """All groups' committed offsets. Every answer carries a code."""

    def __init__(self, api: GroupApi, groups: HeldGroups, clock: Clock, metrics: GroupMetrics) -> None:
        self._api = api
        self._groups = groups
        self._clock = clock
        self._metrics = metrics

    async def commit(
        self, group_id: str, member: MemberRef, offsets: Sequence[CommittedOffset], *, version: int
    ) -> list[bool] | ErrorCode:
        """Per offset whether it was stored (False: its partition is gone); a code when none was."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return held
        async with held.commits:
            code = self._groups.lost(held)
            if code is ErrorCode.none:
                code = held.group.check_commit(self._clock.monotonic(), member, version)
            if code is not ErrorCode.none:
                self._metrics.commit_refused.inc()
                return code
            if not offsets:
                return []
            try:
                stored = await self._api.commit_offsets(group_id, held.epoch, offsets)
            except FencedError:
                self._metrics.commit_failed.inc()
                self._groups.drop(held)
                return ErrorCode.not_coordinator
            except HeadraceError as error:
                self._metrics.commit_failed.inc()
                logger.warning("offset commit failed: group=%s error=%s", group_id, error)
                return ErrorCode(coordinator_error(error))
        self._metrics.committed.inc()
        self._metrics.committed_partitions.inc(sum(stored))
        return stored

    async def fetch(
        self, group_id: str, partition_keys: Sequence[int] | None, member: MemberRef | None = None
    ) -> list[CommittedOffset] | ErrorCode:
        """Committed offsets, all when `partition_keys` is None. `member`: who asks, where it says so (version 9 on)."""
        code = self._groups.refusal(group_id)
        if code is not ErrorCode.none:
            return code
        held = self._groups.get(group_id)
        if member is not None:
            found = await self._groups.find(group_id)
            if isinstance(found, ErrorCode):
                return found
            held = found
            if (code := held.group.check_fetch(member)) is not ErrorCode.none:
                return code
        try:
            if held is None:
                return await self._api.fetch_offsets(group_id, partition_keys)
            async with held.commits:
                return await self._api.fetch_offsets(group_id, partition_keys)
        except HeadraceError as error:
            logger.warning("offset fetch failed: group=%s error=%s", group_id, error)
            return ErrorCode.coordinator_load_in_progress  # the one that consumers of any age ask again for
