"""StreamsGroupDescribe (89, version 0): members of streams groups, with their tasks, and the topology.

Place: a DescribeHandler (../members/describe_request.py).
Source: Kafka's message schemas, KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.streams_group_describe.v0 import response as messages
from kio.schema.streams_group_describe.v0.response import DescribedGroup, Member

from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.members.describe_request import DescribeHandler
from headrace.agent.groups.members.member import Partitions, by_topic
from headrace.agent.groups.streams.group import StreamsGroup
from headrace.agent.groups.streams.members import StreamsMember
from headrace.agent.groups.streams.rules import StreamsGroupRules
from headrace.agent.groups.streams.topology import InternalTopic, Topology
from headrace.protocol.typed import Schema


class StreamsGroupDescribe(DescribeHandler[StreamsGroup, StreamsMember, DescribedGroup]):
    """Describe streams groups, their members and topologies."""

    def __init__(self, administration: GroupAdministration, rules: StreamsGroupRules) -> None:
        super().__init__(StreamsGroup, DescribedGroup, administration)
        self._rules = rules

    def _is_offered(self) -> bool:
        return self._rules.is_offered

    def _details(self, schema: Schema, group: StreamsGroup | None) -> dict[str, object]:
        if group is None or group.topology is None:
            return {"topology": None}
        configured, topology = group.configured, group.topology
        subtopologies = []
        for name in topology.ids:
            each = topology.by_id[name]
            counted = None
            if configured is not None and configured.is_ready and configured.subtopologies is not None:
                counted = configured.subtopologies[name]
            subtopologies.append(
                schema.make(
                    messages.Subtopology,
                    subtopology_id=name,
                    source_topics=tuple(sorted(each.source_topics)),
                    repartition_sink_topics=tuple(sorted(each.repartition_sinks)),
                    state_changelog_topics=_topics(schema, (counted or each).changelogs),
                    repartition_source_topics=_topics(schema, (counted or each).repartition_sources),
                )
            )
        return {
            "topology": schema.make(messages.Topology, epoch=topology.epoch, subtopologies=tuple(subtopologies)),
        }

    def _member(self, schema: Schema, group: StreamsGroup, member: StreamsMember) -> Member:
        endpoint = member.endpoint
        return schema.make(
            Member,
            member_id=member.member_id,
            member_epoch=member.epoch,
            instance_id=None,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None
            if endpoint is None
            else schema.make(messages.Endpoint, host=endpoint.host, port=endpoint.port),
            client_tags=tuple(
                schema.make(messages.KeyValue, key=key, value=value) for key, value in member.client_tags
            ),
            task_offsets=(),
            task_end_offsets=(),
            assignment=_assignment(schema, group.topology, member.assigned),
            target_assignment=_assignment(schema, group.topology, group.target_of(member.member_id)),
            is_classic=False,
        )


def _topics(schema: Schema, topics: Iterable[InternalTopic]) -> tuple[Any, ...]:
    return tuple(
        schema.make(
            messages.TopicInfo,
            name=topic.name,
            partitions=topic.partition_count,
            replication_factor=topic.replication_factor,
            topic_configs=tuple(schema.make(messages.KeyValue, key=key, value=value) for key, value in topic.configs),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )


def _assignment(schema: Schema, topology: Topology | None, keys: Partitions) -> Any:
    by_role: tuple[list[Any], list[Any]] = ([], [])
    for number, partitions in by_topic(keys).items():
        assert topology is not None, "tasks are of a topology"
        name = topology.ids[number // 2]
        by_role[number % 2].append(schema.make(messages.TaskIds, subtopology_id=name, partitions=tuple(partitions)))
    active, standby = map(tuple, by_role)
    return schema.make(messages.Assignment, active_tasks=active, standby_tasks=standby, warmup_tasks=())
