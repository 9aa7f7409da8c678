"""FindCoordinator (key 10, versions 0-6): the agent that coordinates a consumer group, or transactions.

Place: before a consumer's first group request, and after every NOT_COORDINATOR; before a transactional producer's first
request.
Invariant: all agents with the same image give the same answer.
Source: KIP-699 (several keys, version 4).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import transaction_coordinator
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.transactions.init_producer_id import NO_TRANSACTIONS
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

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
        if request.api_version < 4:
            found = self._find(schema, "FindCoordinatorResponse", key_type, entity.key, request.connection.listener)
            return reply(request, found)
        listener = request.connection.listener
        coordinators = tuple(
            self._find(schema, "Coordinator", key_type, key, listener) for key in entity.coordinator_keys
        )
        return reply(request, schema.response(coordinators=coordinators))

    def _coordinator(self, key_type: int, key: str) -> AgentImage | None:
        if key_type == GROUP:
            return self._cluster.coordinator(key)
        return transaction_coordinator(self._cluster.image, key)

    def _find(self, schema: Schema, cls: str, key_type: int, key: str, listener: str) -> Any:
        agent, code, message = None, ErrorCode.none, None
        if key_type == TRANSACTION and not self._cluster.image.transaction_version:
            # The only code that every client library treats as final at once; others are retried.
            code, message = ErrorCode.transactional_id_authorization_failed, NO_TRANSACTIONS
        elif key_type not in (GROUP, TRANSACTION):
            code, message = ErrorCode.invalid_request, f"unsupported coordinator key type: {key_type}"
        elif (agent := self._coordinator(key_type, key)) is None:
            code, message = ErrorCode.coordinator_not_available, "no live agent"
        if agent is not None:
            agent = virtual_node(self._shared, listener) or agent
        address = None if agent is None else agent.endpoint(listener)
        return schema.make(
            cls,
            key=key,
            node_id=-1 if agent is None else agent.node_id,
            host="" if address is None else address.host,
            port=-1 if address is None else address.port,
            error_code=code,
            error_message=message,
        )
