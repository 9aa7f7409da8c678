"""DescribeCluster (key 60, versions 0-2), and functions for all answers about the cluster.

Place: answered from the image, without a query.
Invariant: all agents return the same controller for the same image: one of the live agents, as Kafka's
brokers do (any agent carries out requests for a controller).
Source: KIP-700, KIP-919 (endpoint types), KIP-1073 (fenced brokers).
"""

from __future__ import annotations

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS
from headrace.agent.access.authorization.operations import NOT_ASKED, AclResource
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply

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
