"""ListGroups (key 16, versions 0-5), DeleteGroups (42, 0-2) and OffsetDelete (47, 0): of groups of every kind.

Place: request fields to administration.py and back.
Invariant: versions differ in fields only.
Source: Kafka's message schemas, KIP-222, KIP-496, KIP-518 (states), KIP-848 (types).
"""

from __future__ import annotations

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.offsets.topics import resolve
from headrace.agent.limits.stored_ids import storable
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.groups import GroupListing
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply


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
