"""Serves members of streams groups: their heartbeats, and the topics that they need.

Place: a HeartbeatCoordinator with the handler of StreamsGroupHeartbeat (key 88, version 0) around it
(../members/heartbeats.py). While streams.version is 0 nothing is asked.
Invariant: a streams group begins where nothing is stored, or in place of a classic group without members, of which the
offsets stay: so an application changes its protocol while it is stopped. A group of another kind stays what it is.
Source: Kafka's message schemas; KIP-1071; KafkaApis and GroupCoordinatorService: checks, their order and messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0 import response as messages
from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import Held
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import client_host
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.members.heartbeats import HeartbeatCoordinator, HeartbeatHandler, is_blank
from headrace.agent.groups.members.member import (
    JOIN_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    NOTHING,
    MemberHeartbeatAnswer,
    by_topic,
)
from headrace.agent.groups.streams.configured_topology import Status, StatusCode
from headrace.agent.groups.streams.group import EndpointPartitions, PartitionsByName, StreamsAnswer, StreamsGroup
from headrace.agent.groups.streams.internal_topics import InternalTopics
from headrace.agent.groups.streams.members import QueryEndpoint, StreamsHeartbeat, own_bytes
from headrace.agent.groups.streams.rules import StreamsGroupRules
from headrace.agent.groups.streams.topology import topology_of, why_malformed
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.limits.client_texts import is_topic_name, storable
from headrace.metastore.api.groups import GroupApi
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.request import Request
from headrace.protocol.typed import Schema
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)


class StreamsGroups(HeartbeatCoordinator[StreamsGroup, StreamsHeartbeat]):
    """Makes and serves streams groups."""

    def __init__(
        self,
        api: GroupApi,
        cluster: ClusterView,
        clock: Clock,
        rules: StreamsGroupRules,
        on_rebalance: Callable[[], None],
    ) -> None:
        """`on_rebalance` is called with each new epoch of a group."""
        super().__init__(StreamsGroup, api, cluster, clock)
        self.rules, self._on_rebalance = rules, on_rebalance

    def _new_group(self, group_id: str) -> StreamsGroup:
        return StreamsGroup(
            group_id,
            lambda: self.rules.size_max,
            lambda: self.rules.of(group_id),
            lambda: self._cluster.image,
            self._on_rebalance,
        )

    def _topics_by_name(self) -> Mapping[str, object]:
        return self._cluster.image.topics_by_name

    def _size_of(self, held: Held, request: StreamsHeartbeat, before: int) -> int:
        """A group has its topology once: the first member brings it."""
        if request.topology is None and before:
            return before
        texts = text_bytes(request.member_id, request.rack_id, request.client_id)
        own = own_bytes(request.process_id, request.endpoint, request.client_tags or ())
        is_known = request.topology is None or isinstance(held.group, StreamsGroup)
        new = 0 if is_known or request.topology is None else request.topology.size_bytes
        return max(before, MEMBER_BYTES + texts + own + new)

    async def _refusal(self, held: Held, request: StreamsHeartbeat) -> MemberHeartbeatAnswer | None:
        if _is_free(held):
            return None if request.joins else self._not_found(held, request)
        return await super()._refusal(held, request)

    def _begin(self, groups: HeldGroups, held: Held, request: StreamsHeartbeat) -> MemberHeartbeatAnswer | None:
        """Make a streams group for a member that joins, unless its topology is refused."""
        if not _is_free(held):
            return self._of_another_kind(held, request)
        if not request.joins:
            return self._not_found(held, request)
        group = self._new_group(held.group.group_id)
        if refusal := group.why_not(request):
            return refusal
        was_stored = not is_blank(held)
        groups.replace(held, group, [])
        if was_stored:
            logger.info("group converted: group=%s kind=streams members=0", group.group_id)
        return None


def _is_free(held: Held) -> bool:
    """Return whether a streams group may begin there: nothing is in it, or a classic group without members."""
    return isinstance(held.group, ClassicGroup) and held.group.is_idle()


class StreamsGroupHeartbeat(HeartbeatHandler[StreamsGroupHeartbeatRequest, StreamsHeartbeat]):
    """Serve heartbeats of members of streams groups, and create the internal topics that they miss."""

    def __init__(self, groups: HeldGroups, streams_groups: StreamsGroups, internal_topics: InternalTopics) -> None:
        super().__init__(StreamsGroupHeartbeatRequest, groups, streams_groups)
        self._rules, self._internal_topics = streams_groups.rules, internal_topics

    def _refusal(self, entity: StreamsGroupHeartbeatRequest, version: int) -> MemberHeartbeatAnswer | None:
        if not self._rules.is_offered:
            return MemberHeartbeatAnswer(ErrorCode.unsupported_version, "")
        for code, find in _CHECKS:
            if message := find(entity):
                return MemberHeartbeatAnswer(code, "", message=message)
        return None

    def _heartbeat(self, request: Request, entity: StreamsGroupHeartbeatRequest) -> StreamsHeartbeat:
        timeout, endpoint, tags = entity.rebalance_timeout, entity.user_endpoint, entity.client_tags
        topology = None if entity.topology is None else topology_of(entity.topology)
        return StreamsHeartbeat(
            entity.member_id,
            entity.member_epoch,
            None,
            entity.rack_id,
            request.client_id or "",
            client_host(request.connection),
            None if topology is None else topology.source_topics,
            rebalance_timeout=None if timeout < timedelta(0) else timeout.total_seconds(),
            topology=topology,
            tasks=None if entity.active_tasks is None else (entity.active_tasks, entity.standby_tasks or ()),
            process_id=entity.process_id,
            endpoint=None if endpoint is None else QueryEndpoint(endpoint.host, endpoint.port),
            client_tags=None if tags is None else tuple(sorted({tag.key: tag.value for tag in tags}.items())),
            endpoint_epoch=entity.endpoint_information_epoch,
            shuts_down=entity.shutdown_application,
        )

    def _fields(
        self, schema: Schema, request: Request, entity: StreamsGroupHeartbeatRequest, answer: MemberHeartbeatAnswer
    ) -> dict[str, object]:
        said = answer if isinstance(answer, StreamsAnswer) else StreamsAnswer(answer.code, answer.member_id)
        failed, tells = answer.code is not ErrorCode.none, said.assigned is not None
        return {
            "member_id": "" if failed else answer.member_id,
            "acceptable_recovery_lag": 0,
            "task_offset_interval": timedelta(0),
            "status": tuple(
                schema.make(messages.Status, status_code=status.code, status_detail=status.detail)
                for status in self._statuses(request, entity.group_id, said)
            ),
            "active_tasks": _tasks(schema, said, is_standby=False) if tells else None,
            "standby_tasks": _tasks(schema, said, is_standby=True) if tells else None,
            "warmup_tasks": () if tells else None,
            "endpoint_information_epoch": said.endpoint_epoch,
            "partitions_by_user_endpoint": None
            if said.endpoints is None
            else tuple(_endpoint(schema, each) for each in said.endpoints),
        }

    def _statuses(self, request: Request, group_id: str, said: StreamsAnswer) -> Iterable[Status]:
        """Yield them with what became of the internal topics."""
        for status in said.statuses:
            if status.code is StatusCode.MISSING_INTERNAL_TOPICS and said.missing:
                what = self._internal_topics.ask(request, said.missing, 2 * self._interval(group_id))
                status = status._replace(detail=status.detail + what)
            yield status

    def _interval(self, group_id: str) -> float:
        return self._rules.of(group_id).heartbeat_interval


def _tasks(schema: Schema, said: StreamsAnswer, *, is_standby: bool) -> tuple[Any, ...]:
    topology = said.topology
    assert topology is not None, "tasks are of a topology"
    return tuple(
        schema.make(messages.TaskIds, subtopology_id=topology.ids[number // 2], partitions=tuple(partitions))
        for number, partitions in by_topic(said.assigned or NOTHING).items()
        if number % 2 == is_standby
    )


def _endpoint(schema: Schema, said: EndpointPartitions) -> Any:
    def partitions(topics: PartitionsByName) -> tuple[Any, ...]:
        return tuple(
            schema.make(messages.TopicPartition, topic=name, partitions=tuple(indexes))
            for name, indexes in topics.items()
        )

    return schema.make(
        messages.EndpointToPartitions,
        user_endpoint=schema.make(messages.Endpoint, host=said.endpoint.host, port=said.endpoint.port),
        active_partitions=partitions(said.active),
        standby_partitions=partitions(said.standby),
    )


# -- what is wrong with a request in any state of the group, in Kafka's order


def topic_names(entity: StreamsGroupHeartbeatRequest) -> list[str]:
    """Return the topics of the topology, each once."""
    subtopologies = () if entity.topology is None else entity.topology.subtopologies
    names = (
        name
        for each in subtopologies
        for name in (
            *each.source_topics,
            *each.repartition_sink_topics,
            *(topic.name for topic in each.repartition_source_topics),
            *(topic.name for topic in each.state_changelog_topics),
        )
    )
    return list(dict.fromkeys(names))


def _why_bad_topics(entity: StreamsGroupHeartbeatRequest) -> str | None:
    names = topic_names(entity)
    if prohibited := [name for name in names if name in INTERNAL_TOPICS]:
        return f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
    if invalid := [name for name in names if not is_topic_name(name)]:
        return f"Topic names {','.join(invalid)[:1000]} are not valid topic names."
    return None


def _why_unsupported(entity: StreamsGroupHeartbeatRequest) -> str | None:
    if entity.instance_id is not None:
        return "Static membership is not yet supported."
    if entity.task_offsets is not None:
        return "TaskOffsets are not supported yet."
    if entity.task_end_offsets is not None:
        return "TaskEndOffsets are not supported yet."
    if entity.warmup_tasks:
        return "WarmupTasks are not supported yet."
    if entity.topology is not None and any(each.source_topic_regex for each in entity.topology.subtopologies):
        return "Regular expressions for source topics are not supported yet."
    return None


def _why_bad_ids(entity: StreamsGroupHeartbeatRequest) -> str | None:
    for name, text in (("MemberId", entity.member_id), ("GroupId", entity.group_id), ("RackId", entity.rack_id)):
        if text is not None and not text.strip():
            return f"{name} can't be empty."
    endpoint, tags = entity.user_endpoint, entity.client_tags or ()
    texts = [entity.member_id, entity.group_id, entity.rack_id, entity.process_id, endpoint and endpoint.host]
    texts += [text for tag in tags for text in (tag.key, tag.value)]
    if not all(storable(text) for text in texts if text):
        return "A text holds a character that is not allowed."
    return None


def _why_bad_join(entity: StreamsGroupHeartbeatRequest) -> str | None:
    if entity.member_epoch == LEAVE_FOR_A_WHILE_EPOCH:
        return "InstanceId can't be null."
    if entity.member_epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return f"MemberEpoch is {entity.member_epoch}, but must be greater than or equal to -2."
    if entity.member_epoch != JOIN_EPOCH:
        return None
    if entity.rebalance_timeout < timedelta(0):
        return "RebalanceTimeoutMs must be provided in first request."
    kinds = (("Active", entity.active_tasks), ("Standby", entity.standby_tasks), ("Warmup", entity.warmup_tasks))
    for kind, tasks in kinds:
        if tasks != ():
            return f"{kind}Tasks must be empty when (re-)joining."
    return "Topology must be non-null when (re-)joining." if entity.topology is None else None


def _why_counted_changelogs(entity: StreamsGroupHeartbeatRequest) -> str | None:
    for each in () if entity.topology is None or entity.member_epoch != JOIN_EPOCH else entity.topology.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions:
                return (
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to"
                    f" {topic.partitions}."
                )
    return None


def _why_bad_fields(entity: StreamsGroupHeartbeatRequest) -> str | None:
    said = [tasks is not None for tasks in (entity.active_tasks, entity.standby_tasks, entity.warmup_tasks)]
    if any(said) and not all(said):
        return "If one task-type is non-null, all must be non-null."
    if entity.member_epoch != JOIN_EPOCH and entity.topology is not None:
        return "Topology can only be provided when (re-)joining."
    return None


def _why_malformed(entity: StreamsGroupHeartbeatRequest) -> str | None:
    return None if entity.topology is None else why_malformed(topology_of(entity.topology))


_CHECKS: tuple[tuple[ErrorCode, Callable[[StreamsGroupHeartbeatRequest], str | None]], ...] = (
    (ErrorCode.streams_invalid_topology, _why_bad_topics),
    (ErrorCode.invalid_request, _why_unsupported),
    (ErrorCode.invalid_request, _why_bad_ids),
    (ErrorCode.invalid_request, _why_bad_join),
    (ErrorCode.streams_invalid_topology, _why_counted_changelogs),
    (ErrorCode.invalid_request, _why_bad_fields),
    (ErrorCode.unknown_server_error, _why_malformed),
)
