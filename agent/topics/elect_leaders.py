"""ElectLeaders (key 43, versions 0-2): leadership follows from the set of live agents, so no election is ever needed.

Place: answered from one image, in slices: leaders are found for 10,000 partitions of one request.
Invariant: with a live agent, every partition has its leader: ELECTION_NOT_NEEDED. As in Kafka, an answer for
all partitions leaves those out.
Source: KIP-460.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.metastore.log.image import TopicImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

PREFERRED, UNCLEAN = 0, 1


class ElectLeaders:
    """Answer ElectLeaders: no election is needed."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ElectLeadersRequest)
        code, results, slices = ErrorCode.none, list[ReplicaElectionResult](), WorkSlices()
        try:
            await self._cluster.catch_up()
            routes = self._cluster.routes
            if getattr(entity, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
                code = ErrorCode.invalid_request
            else:
                for name, indexes in _by_topic(entity.topic_partitions or ()).items():
                    partitions = await _partitions(schema, routes, name, indexes, slices)
                    results.append(schema.make(ReplicaElectionResult, topic=name, partition_result=partitions))
        except HeadraceError as error:
            code = ErrorCode(admin_error(error))
        response = schema.response(error_code=code, replica_election_results=tuple(results))
        return reply(request, response)


def _by_topic(asked: Iterable[TopicPartitions]) -> dict[str, dict[int, None]]:
    """Return the indexes of each topic, without duplicates; the last list of a topic counts."""
    return {topic.topic: dict.fromkeys(topic.partitions) for topic in asked}


async def _partitions(
    schema: Schema, routes: Routes, name: str, indexes: Iterable[int], slices: WorkSlices
) -> tuple[PartitionResult, ...]:
    """Return the answer for each partition of a topic."""
    topic = routes.image.topics_by_name.get(name)
    for cost in () if topic is None else routes.steps(topic):
        await slices.did(cost)

    def shown(index: int) -> PartitionResult:
        verdict = _verdict(routes, topic, index)
        return schema.make(PartitionResult, partition_id=index, error_code=verdict.code, error_message=verdict.message)

    return await slices.each(shown, indexes, TOPIC_UNITS)


def _verdict(routes: Routes, topic: TopicImage | None, index: int) -> Verdict:
    key = None if topic is None else topic.key(index)
    if key is None:
        return Verdict(ErrorCode.unknown_topic_or_partition, "partition does not exist")
    if routes.leader(key) is None:
        return Verdict(ErrorCode.preferred_leader_not_available, "no live agent")
    return Verdict(ErrorCode.election_not_needed, "the leader follows from the live agents")
