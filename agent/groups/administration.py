"""What admin tools ask of groups of every kind: list, find, delete, delete offsets.

ListGroups (key 16, versions 0-5), DeleteGroups (42, versions 0-2), OffsetDelete (47, version 0).

Place: between the rows of agent/apis, the handlers of descriptions, the groups of held_groups.py and the metastore.
It knows groups by coordinated.py only.
Invariant: a group is listed by the agent that coordinates it by routing, loaded or not: asked all, the
agents list each group once. Only an empty group is deleted,
and no offset of a topic in use. Deleting a group is one statement. Versions differ in fields only.
Source: Kafka's message schemas, KIP-222, KIP-496, KIP-518 (states), KIP-848 (types).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic

from headrace.agent.access.authorization.access import FULL_ACCESS
from headrace.agent.access.authorization.operations import AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import Held
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.coordinators import refusals as refusals_of
from headrace.agent.groups.group_values import CONSUMER
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.offsets.judged_offsets import resolve
from headrace.agent.limits.client_texts import storable
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.groups import EMPTY, GroupApi, GroupKind, GroupListing
from headrace.protocol.errors import coordinator_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError

logger = logging.getLogger(__name__)

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
            if active and group.kind is GroupKind.CLASSIC and group.protocol_type != CONSUMER:
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


class ListGroups:
    """The handler. Clients ask every agent; filters are compared without regard to case, as Kafka does."""

    def __init__(self, administration: GroupAdministration) -> None:
        self._administration = administration

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ListGroupsRequest)
        states = {state.strip().lower() for state in getattr(entity, "states_filter", ())}
        types = {kind.strip().lower() for kind in getattr(entity, "types_filter", ())}
        slices = WorkSlices()
        found = await self._administration.list(slices)
        code = found if isinstance(found, ErrorCode) else ErrorCode.none
        listed: list[GroupListing] = [] if isinstance(found, ErrorCode) else found

        def shown(each: GroupListing) -> ListedGroup:
            return schema.make(
                ListedGroup,
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.kind.value,
            )

        wanted = (
            each
            for each in listed
            if (not states or each.state.lower() in states) and (not types or each.kind.value in types)
        )
        groups = await slices.each(shown, wanted)
        return reply(request, schema.response(error_code=code, groups=groups))


class DeleteGroups:
    """Delete groups without members."""

    def __init__(self, administration: GroupAdministration) -> None:
        self._administration = administration

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DeleteGroupsRequest)
        slices, results = WorkSlices(), []
        unknown = await self._administration.unknown([name for name in entity.groups_names if storable(name)], slices)
        for group_id in entity.groups_names:
            await self._administration.elect(group_id, slices)
            code = await self._delete(group_id, unknown)
            results.append(schema.make(DeletableGroupResult, group_id=group_id, error_code=code))
        return reply(request, schema.response(results=tuple(results)))

    async def _delete(self, group_id: str, unknown: frozenset[str]) -> ErrorCode:
        if not storable(group_id):
            return ErrorCode.invalid_group_id
        if group_id in unknown:
            return ErrorCode.group_id_not_found
        return await self._administration.delete(group_id)


class OffsetDelete:
    """Delete committed offsets of a group."""

    def __init__(self, administration: GroupAdministration, cluster: ClusterView) -> None:
        self._administration = administration
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, OffsetDeleteRequest)
        topics = await resolve(self._cluster, (topic.name for topic in entity.topics), by_id=False)
        keys: dict[str, list[int]] = {}
        for topic in entity.topics:
            if (found := topics.found.get(topic.name)) is not None:
                known = (found.key(each.partition_index) for each in topic.partitions)
                keys.setdefault(topic.name, []).extend(key for key in known if key is not None)
        codes: dict[str, ErrorCode] | ErrorCode = ErrorCode.invalid_group_id
        if storable(entity.group_id):
            codes = await self._administration.delete_offsets(entity.group_id, keys)
        if isinstance(codes, ErrorCode):
            return reply(request, schema.response(error_code=codes, topics=()))

        def code(topic: OffsetDeleteRequestTopic, index: int) -> ErrorCode:
            found = topics.found.get(topic.name)
            if found is None:
                return topics.missing
            return ErrorCode.unknown_topic_or_partition if found.key(index) is None else codes[topic.name]

        answered = tuple(
            schema.make(
                OffsetDeleteResponseTopic,
                name=topic.name,
                partitions=tuple(
                    schema.make(
                        OffsetDeleteResponsePartition,
                        partition_index=each.partition_index,
                        error_code=code(topic, each.partition_index),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(error_code=ErrorCode.none, topics=answered))
