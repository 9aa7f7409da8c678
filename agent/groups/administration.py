"""What admin tools ask of groups of every kind: list, find, delete, delete offsets.

Place: between the handlers of admin_requests.py and of the kinds' descriptions, and the groups of held_groups.py and
the metastore. It knows groups by coordinated.py only.
Invariant: a group is listed by the agent that coordinates it by routing, loaded or not: asked all, the
agents list each group once. Only an empty group is deleted, and no offset of a topic in use.
Deleting a group is one statement.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS
from headrace.agent.access.authorization.operations import AclResource
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.coordinators import refusals as refusals_of
from headrace.agent.groups.group_values import CONSUMER
from headrace.agent.groups.held_groups import Held, HeldGroups
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.groups import GroupApi, GroupListing
from headrace.protocol.errors import coordinator_error
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError

logger = logging.getLogger(__name__)

EMPTY = "Empty"
GROUP_OPERATIONS = FULL_ACCESS.operations(AclResource.GROUP)
"""Those that ACLs do not allow are removed in agent/access/authorization."""
_WORTH_A_QUERY = 3
"""Number of groups below which each is claimed and looked up on its own."""


class GroupAdministration:
    """Every answer carries a code; nothing raises for what clients can do."""

    def __init__(self, api: GroupApi, groups: HeldGroups) -> None:
        self._api = api
        self._groups = groups

    async def list(self, slices: WorkSlices) -> list[GroupListing] | ErrorCode:
        """This agent's groups, as they are in memory, else as they were saved; by id."""
        try:
            stored = await self._api.list_groups()
        except HeadraceError as error:
            return _failed("*", error)
        await slices.did(len(stored))
        listed = {each.group_id: each for each in stored}
        for held in self._groups:
            group = held.group
            if group.group_id in listed or group.state_name != EMPTY:
                listed[group.group_id] = GroupListing(
                    group.group_id, group.kind, group.state_name, group.protocol_type or ""
                )
        await slices.did(len(listed))
        refusals = await refusals_of(self._groups, listed, slices)
        if ErrorCode.coordinator_not_available in refusals.values():
            return ErrorCode.coordinator_not_available
        own = [each for group_id, each in listed.items() if refusals[group_id] is ErrorCode.none]
        return await slices.in_order(own, attrgetter("group_id"))

    async def unknown(self, group_ids: Sequence[str], slices: WorkSlices) -> frozenset[str]:
        """Return, of the groups that this agent coordinates, those of which nothing is in memory or stored.
        One query for all.

        A request may name thousands of them, and to claim each costs a statement.
        """
        not_here = [group_id for group_id in group_ids if self._groups.get(group_id) is None]
        refusals = await refusals_of(self._groups, not_here, slices)
        absent = [group_id for group_id, code in refusals.items() if code is ErrorCode.none]
        if len(absent) < _WORTH_A_QUERY:
            return frozenset()
        try:
            stored = {each.group_id for each in await self._api.list_groups(absent)}
        except HeadraceError as error:
            logger.warning("groups not looked up: groups=%d error=%s", len(absent), error)
            return frozenset()
        return frozenset(absent) - stored

    async def elect(self, group_id: str, slices: WorkSlices) -> None:
        """Find the group's coordinator before a request about it."""
        await elect(self._groups.cluster.routes, group_id, slices)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete the group with its offsets. NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND when there is
        nothing of it.
        """
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return held
        async with held.saves, held.commits:
            if (code := self._groups.lost(held)) is not ErrorCode.none:
                return code
            if held.group.state_name != EMPTY:
                return ErrorCode.non_empty_group
            try:
                existed = await self._api.delete_group(group_id, held.epoch)
                held.group.deleted()
            except HeadraceError as error:
                return _failed(group_id, error)
            finally:
                self._groups.drop(held)  # a member that joined meanwhile joins a new group
        return ErrorCode.none if existed else ErrorCode.group_id_not_found

    async def delete_offsets(
        self, group_id: str, keys_by_topic: Mapping[str, Sequence[int]]
    ) -> dict[str, ErrorCode] | ErrorCode:
        """Each topic's code: GROUP_SUBSCRIBED_TO_TOPIC while members consume it, and its offsets stay."""
        held = await self.existing(group_id)
        if isinstance(held, ErrorCode):
            return held
        async with held.commits:
            if (code := self._groups.lost(held)) is not ErrorCode.none:
                return code
            group = held.group
            if not group.keeps_offsets:
                return ErrorCode.group_id_not_found
            active = group.state_name != EMPTY
            if active and group.protocol_type != CONSUMER:
                return ErrorCode.non_empty_group
            subscribed = group.subscribed_topics() if active else frozenset()
            in_use = {topic for topic in keys_by_topic if subscribed is None or topic in subscribed}
            keys = [key for topic, each in keys_by_topic.items() if topic not in in_use for key in each]
            try:
                await self._api.delete_offsets(group_id, held.epoch, sorted(keys))
            except (FencedError, OutcomeUnknownError) as error:  # a late deletion must not follow a later commit
                self._groups.drop(held)
                return _failed(group_id, error)
            except HeadraceError as error:
                return _failed(group_id, error)
        return {
            topic: ErrorCode.group_subscribed_to_topic if topic in in_use else ErrorCode.none for topic in keys_by_topic
        }

    async def existing(self, group_id: str) -> Held | ErrorCode:
        """The group; GROUP_ID_NOT_FOUND when there is nothing of it."""
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode) or held.group.state_name != EMPTY:
            return held
        try:
            found = await self._api.list_groups([group_id])
        except HeadraceError as error:
            return _failed(group_id, error)
        if (code := self._groups.lost(held)) is not ErrorCode.none:
            return code
        return held if found or held.group.state_name != EMPTY else ErrorCode.group_id_not_found


def _failed(group_id: str, error: HeadraceError) -> ErrorCode:
    logger.warning("group request failed: group=%s error=%s", group_id, error)
    return ErrorCode(coordinator_error(error))
