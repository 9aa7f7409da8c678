"""ElectLeaders (key 43, versions 0-2): leadership follows from the set of live agents, so no election is ever needed.

Place: answered from the image.
Invariant: with a live agent, every partition has its leader: ELECTION_NOT_NEEDED. As in Kafka, an answer for
all partitions leaves those out.
Source: KIP-460.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

PREFERRED, UNCLEAN = 0, 1


class ElectLeaders:
    """Answer ElectLeaders: no election is needed."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        code, results = ErrorCode.none, {}
        try:
            image = await self._cluster.catch_up()
            if getattr(entity, "election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
                code = ErrorCode.invalid_request
            elif entity.topic_partitions is not None:
                results = {
                    topic.topic: {index: self._verdict(image, topic.topic, index) for index in topic.partitions}
                    for topic in entity.topic_partitions
                }
        except HeadraceError as error:
            code = ErrorCode(admin_error(error))
        response = schema.response(
            error_code=code,
            replica_election_results=tuple(
                schema.make(
                    "ReplicaElectionResult",
                    topic=name,
                    partition_result=tuple(
                        schema.make(
                            "PartitionResult",
                            partition_id=index,
                            error_code=verdict.code,
                            error_message=verdict.message,
                        )
                        for index, verdict in partitions.items()
                    ),
                )
                for name, partitions in results.items()
            ),
        )
        return reply(request, response)

    def _verdict(self, image: MetadataImage, name: str, index: int) -> Verdict:
        topic = image.topics_by_name.get(name)
        key = None if topic is None else topic.key(index)
        if key is None:
            return Verdict(ErrorCode.unknown_topic_or_partition, "partition does not exist")
        if self._cluster.leader(key) is None:
            return Verdict(ErrorCode.preferred_leader_not_available, "no live agent")
        return Verdict(ErrorCode.election_not_needed, "the leader follows from the live agents")
