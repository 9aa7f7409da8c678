"""The requests for the routing that the image has: DescribeCluster, FindCoordinator,
PartitionLeaderEpochsForPartitions.

DescribeCluster (key 60, versions 0-2), FindCoordinator (10, versions 0-6), PartitionLeaderEpochsForPartitions (a
private API key).

Place: any agent answers. FindCoordinator comes before a consumer's first group request, after every NOT_COORDINATOR,
and before a transactional producer's first request. Readers of new and of marked partitions wait for leader epochs.
`controller_id` is for all answers about the cluster.
Invariant: all agents return the same controller for the same image: one of the live agents, as Kafka's brokers do
(any agent carries out requests for a controller). All agents with the same image name the same coordinator. An
answer for several keys is of one image, and computed in slices: with 1,000 agents each key costs a millisecond. A
partition is unknown only after the image caught up with the end of the metadata log.
Source: KIP-700, KIP-919 (endpoint types), KIP-1073 (fenced brokers); KIP-699 (several keys, version 4); KIP-253,
protocol change 5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from headrace.agent.access.authorization.access import FULL_ACCESS
from headrace.agent.access.authorization.operations import NOT_ASKED, AclResource
from headrace.agent.cluster.routing import Routes, transaction_coordinator
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.agent.transactions.producer_requests import NO_TRANSACTIONS
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.shown_counts import initial_count, undeleted_count
from headrace.metastore.partitions.placement import nearest
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.ordered_requests import (
    NO_EPOCH,
    VERSION,
    PartitionEpochs,
    decode_epochs_request,
    encode_epochs_response,
)
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.protocol.typed import Schema, decode, reply, response_header
from headrace.storage.errors import HeadraceError

BROKERS = 1
CONTROLLERS = 2


def controller_id(routes: Routes) -> int:
    """The node id to which clients send admin requests; -1 without a live agent."""
    controller = routes.controller()
    return -1 if controller is None else controller.node_id


class DescribeCluster:
    """Answer DescribeCluster with the agents and the controller."""

    def __init__(self, cluster: ClusterView, shared: SharedAddress | None) -> None:
        self._cluster = cluster
        self._shared = shared

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeClusterRequest)
        routes = self._cluster.routes
        image = routes.image
        endpoint_type = getattr(entity, "endpoint_type", BROKERS)
        code, message = _endpoint_error(endpoint_type)
        agents = list(routes.live_agents)
        if getattr(entity, "include_fenced_brokers", False):
            agents = sorted(image.agents.values(), key=lambda agent: agent.node_id)
        virtual = virtual_node(self._shared, request.connection.listener)
        if virtual is not None:
            agents = [virtual]
        brokers = tuple(
            schema.make(
                DescribeClusterBroker,
                broker_id=agent.node_id,
                host=address.host,
                port=address.port,
                rack=agent.rack,
                is_fenced=agent.fenced,
            )
            for agent, address in ((agent, agent.endpoint(request.connection.listener)) for agent in agents)
        )
        response = schema.response(
            error_code=code,
            error_message=message,
            endpoint_type=endpoint_type,
            cluster_id=self._cluster.cluster_id,
            controller_id=controller_id(routes) if virtual is None else virtual.node_id,
            brokers=brokers if code is ErrorCode.none else (),
            cluster_authorized_operations=(
                FULL_ACCESS.operations(AclResource.CLUSTER)
                if entity.include_cluster_authorized_operations
                else NOT_ASKED
            ),
        )
        return reply(request, response)


def _endpoint_error(endpoint_type: int) -> tuple[ErrorCode, str | None]:
    if endpoint_type == BROKERS:
        return ErrorCode.none, None
    if endpoint_type == CONTROLLERS:
        return ErrorCode.mismatched_endpoint_type, "this is a broker endpoint, not a controller endpoint"
    return ErrorCode.unsupported_endpoint_type, f"unsupported endpoint type: {endpoint_type}"


M = TypeVar("M")
GROUP = 0
TRANSACTION = 1


class FindCoordinator:
    """Return the agent that coordinates a group or a transactional id."""

    def __init__(self, cluster: ClusterView, shared: SharedAddress | None, on_refused: OnRefused = unheard) -> None:
        self._cluster = cluster
        self._shared = shared
        self._on_refused = on_refused

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        key_type = getattr(entity, "key_type", GROUP)
        if key_type == TRANSACTION and not self._cluster.image.transaction_version:
            self._on_refused(request, NO_TRANSACTIONS)
        listener, routes = request.connection.listener, self._cluster.routes
        if request.api_version < 4:
            found = self._find(schema, FindCoordinatorResponse, routes, key_type, entity.key, listener)
            return reply(request, found)
        slices = WorkSlices()
        coordinators = []
        for key in entity.coordinator_keys:
            await slices.did(ELEMENT_UNITS + _scores(routes, key_type, key))
            coordinators.append(self._find(schema, Coordinator, routes, key_type, key, listener))
        return reply(request, schema.response(coordinators=tuple(coordinators)))

    def _coordinator(self, routes: Routes, key_type: int, key: str) -> AgentImage | None:
        if key_type == TRANSACTION:
            return transaction_coordinator(routes, key)
        found = routes.coordinator(key)
        if found is not None and found.node_id == self._cluster.node_id and self._cluster.coordinator(key) is None:
            return None  # this agent's lease has expired
        return found

    def _find(self, schema: Schema, message: type[M], routes: Routes, key_type: int, key: str, listener: str) -> M:
        agent, code, reason = None, ErrorCode.none, None
        if key_type == TRANSACTION and not routes.image.transaction_version:
            # The only code that every client library treats as final at once; others are retried.
            code, reason = ErrorCode.transactional_id_authorization_failed, NO_TRANSACTIONS
        elif key_type not in (GROUP, TRANSACTION):
            code, reason = ErrorCode.invalid_request, f"unsupported coordinator key type: {key_type}"
        elif (agent := self._coordinator(routes, key_type, key)) is None:
            code, reason = ErrorCode.coordinator_not_available, "no live agent"
        if agent is not None:
            agent = virtual_node(self._shared, listener) or agent
        address = None if agent is None else agent.endpoint(listener)
        return schema.make(
            message,
            key=key,
            node_id=-1 if agent is None else agent.node_id,
            host="" if address is None else address.host,
            port=-1 if address is None else address.port,
            error_code=code,
            error_message=reason,
        )


def _scores(routes: Routes, key_type: int, key: str) -> int:
    """Return how many scores of agents are computed for the key."""
    return len(routes.live_agents) if key_type == TRANSACTION else routes.coordinator_scores(key)


log = logging.getLogger(__name__)

Asked = Mapping[str, Sequence[int]]


class PartitionLeaderEpochs:
    """Return the leader epochs of partitions to clients that keep the order of keys."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        if request.api_version != VERSION:
            raise CloseConnection("partition leader epochs: unsupported version")
        asked = decode_epochs_request(request.body, request.connection.request_elements_max)
        image, unknown = self._cluster.image, int(ErrorCode.unknown_topic_or_partition)
        if not all(_has(image, name, index) for name, indexes in asked.items() for index in indexes):
            try:
                image = await self._cluster.catch_up()
            except HeadraceError as error:
                log.warning("cannot look partitions up: cannot read metadata log: error=%s", error)
                unknown = READ_FAILED
        found = {
            name: [_epochs(image.topics_by_name.get(name), index, unknown) for index in indexes]
            for name, indexes in asked.items()
        }
        return Response([response_header(request.correlation_id, False), encode_epochs_response(found)])


def _has(image: MetadataImage, name: str, index: int) -> bool:
    topic = image.topics_by_name.get(name)
    return topic is not None and topic.has(index)


def _epochs(topic: TopicImage | None, index: int, unknown: int) -> PartitionEpochs:
    if topic is None or not topic.has(index):
        return PartitionEpochs(index, unknown)
    source, after_creation = topic.created_from.get(index, (-1, NO_EPOCH))
    before_deletion = topic.before_deletion.get(index, {})
    heir = nearest(index, initial_count(topic), undeleted_count(topic)) if before_deletion else -1
    return PartitionEpochs(
        index, ErrorCode.none, source, after_creation, before_deletion.get(heir, NO_EPOCH), before_deletion
    )
