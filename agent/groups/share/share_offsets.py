"""What admin tools ask of the offsets of share groups: describe, alter, delete.

Place: between offsets_requests.py and the owner's partitions.
Invariant: only a group without members is changed, under its claim, and an answer says so only once it is stored.
Source: KIP-932, KIP-1226 (lag).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.administration import EMPTY, GroupAdministration
from headrace.agent.groups.held_groups import Held
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.groups.share.owner import ShareOwner
from headrace.metastore.api.groups import GroupApi
from headrace.metastore.api.read import ReadableEnds
from headrace.protocol.errors import coordinator_error
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


CLAIMS = 5
"""How many claims a deletion tries while clients that are no members any more still write."""


class ShareOffset(NamedTuple):
    """An offset in one partition. `lag`: records from the start on that are not done; -1 if it is not known."""

    start: int
    lag: int


class ShareOffsets:
    """Every answer carries a code; nothing raises for what clients can do."""

    def __init__(
        self,
        api: GroupApi,
        administration: GroupAdministration,
        owner: ShareOwner,
        create: Callable[[str], Awaitable[Held | ErrorCode]],
    ) -> None:
        """`create`: returns a share group, a new one if there is none of this id."""
        self._api, self._administration, self._owner, self._create = api, administration, owner, create

    async def describe(self, group_id: str) -> dict[int, ShareOffset] | ErrorCode:
        """Partition key -> what the group has done there, of all that it has begun: nothing if there is no such share
        group, as in Kafka.
        """
        owned = await self._loaded(group_id)
        if owned is ErrorCode.group_id_not_found:
            return {}
        if isinstance(owned, ErrorCode):
            return owned
        partitions = dict(owned.group.partitions)
        ends: Mapping[int, ReadableEnds | ErrorCode] = {}
        if self._owner.logs is not None:
            ends = await self._owner.logs.ends(
                {key: each.end for key, each in partitions.items()},
                committed=owned.group.configs().read_committed,
            )
        found = {}
        for key, each in partitions.items():
            end = ends.get(key)
            lag = max(end.end - each.start - each.done_after_start(), 0) if isinstance(end, ReadableEnds) else -1
            found[key] = ShareOffset(each.start, lag)
        return found

    async def alter(self, group_id: str, starts: Mapping[int, int]) -> dict[int, ErrorCode] | ErrorCode:
        """Begin at these offsets, also if there is no such group yet, as in Kafka. Each partition's code.

        An offset beyond the high watermark counts as that: the next owner would take it so.
        """
        owned = await self._loaded(group_id, create=bool(starts))
        if isinstance(owned, ErrorCode):
            return owned
        try:
            starts = await self._within_the_logs(starts)
        except HeadraceError as error:
            logger.warning("share offsets not altered: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        refusal = await owned.set_starts(starts)
        if refusal is not ErrorCode.none:
            return refusal
        gone = ErrorCode.unknown_topic_or_partition
        return {key: ErrorCode.none if key in owned.group.partitions else gone for key in starts}

    async def _within_the_logs(self, starts: Mapping[int, int]) -> Mapping[int, int]:
        """Return them with none beyond its high watermark. HeadraceError if that is not known."""
        if self._owner.logs is None or not starts:
            return starts
        ends = await self._owner.logs.high_watermarks(starts)
        return {key: min(start, ends.get(key, start)) for key, start in starts.items()}

    async def delete(self, group_id: str, keys: Collection[int]) -> Collection[int] | ErrorCode:
        """Forget what the group has done in these partitions; return those in which it had begun. A write that is under
        way would bring it back, and one with an unknown outcome may arrive later: the deletion is the first write of a
        claim.
        """
        for _ in range(CLAIMS):
            owned = await self._loaded(group_id)
            if isinstance(owned, ErrorCode):
                return owned
            if owned.group.state_name != EMPTY:
                return ErrorCode.non_empty_group
            if owned.stop():
                return await self._delete(owned, keys)
            self._owner.drop(owned)
        return ErrorCode.coordinator_load_in_progress

    async def _delete(self, owned: GroupPartitions, keys: Collection[int]) -> Collection[int] | ErrorCode:
        group_id = owned.group.group_id
        begun = [key for key in keys if key in owned.group.partitions]
        try:
            await self._api.delete_offsets(group_id, owned.held.epoch, sorted(keys))
            self._owner.forget(owned, keys)
        except HeadraceError as error:
            logger.warning("share offsets not deleted: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        finally:
            self._owner.drop(owned)  # it is read again, with or without them
        return begun

    async def _loaded(self, group_id: str, *, create: bool = False) -> GroupPartitions | ErrorCode:
        held = await self._administration.existing(group_id)
        if create and held is ErrorCode.group_id_not_found:
            held = await self._create(group_id)
        if not isinstance(held, Held):
            return held
        if not isinstance(held.group, ShareGroup):
            return ErrorCode.group_id_not_found
        owned = self._owner.partitions_of(held, held.group)
        try:
            await owned.load()
        except HeadraceError as error:
            logger.warning("share group not loaded: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        return ErrorCode.not_coordinator if owned.is_over else owned
