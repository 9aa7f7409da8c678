"""FindCoordinator (key 10, versions 0-6): the agent that coordinates a consumer group, or transactions.

Place: before a consumer's first group request, and after every NOT_COORDINATOR; before a transactional producer's first
request.
Invariant: all agents with the same image give the same answer. One with several keys is of one image, and computed in
slices: with 1,000 agents each key costs a millisecond.
Source: KIP-699 (several keys, version 4).
"""

from __future__ import annotations

from typing import TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse

from headrace.agent.cluster.routing import Routes, transaction_coordinator
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.agent.transactions.init_producer_id import NO_TRANSACTIONS
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

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
