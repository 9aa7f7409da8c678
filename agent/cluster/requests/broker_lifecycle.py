"""BrokerRegistration (key 62), BrokerHeartbeat (63) and UnregisterBroker (64) over the Kafka protocol.

Place: for software that uses the controller's API. Headrace's agents call the metastore directly
(agent/cluster/membership.py); both use the same functions in Postgres.
Invariant: only the active controller answers 62 and 63, all others return NOT_CONTROLLER, as in
Kafka. Any agent carries out 64, which Kafka's brokers forward; unregistering twice is NONE, as long as the id is
among the UNREGISTERED_MAX that went last.
Source: KIP-631 (the seed's keys 57-59 are Kafka's 62-64), KIP-858 and KIP-966 (later fields, not needed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.errors import ErrorCode
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

from headrace.agent.cluster.view import ClusterView
from headrace.config.bounds import NODE_ID_MAX
from headrace.metastore.api.agents import AgentRegistration, FeatureRange, Listener
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.protocol.errors import membership_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

IsActive = Callable[[], bool]
"""Whether this process is the active controller, by its own lease deadline."""


class BrokerRegistration:
    """The handler of key 62, versions 0-4."""

    def __init__(self, api: ClusterApi, is_active: IsActive) -> None:
        self._api = api
        self._is_active = is_active

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, BrokerRegistrationRequest)
        code, broker_epoch = ErrorCode.none, -1
        try:
            if not self._is_active():
                code = ErrorCode.not_controller
            elif not 0 <= entity.broker_id <= NODE_ID_MAX or entity.incarnation_id is None or not entity.listeners:
                code = ErrorCode.invalid_request
            else:
                broker_epoch = (await self._api.register_agent(_registration(entity))).broker_epoch
        except HeadraceError as error:
            code = ErrorCode(membership_error(error))
        return reply(request, schema.response(error_code=code, broker_epoch=broker_epoch))


class BrokerHeartbeat:
    """The handler of key 63, versions 0-2. An agent has no log dirs: those that a request names do not matter."""

    def __init__(self, cluster: ClusterView, api: ClusterApi, in_force: SettingsInForce, is_active: IsActive) -> None:
        self._cluster = cluster
        self._api = api
        self._in_force = in_force
        self._is_active = is_active

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, BrokerHeartbeatRequest)
        code, caught_up, fenced, shut_down = ErrorCode.none, False, True, False
        try:
            if not self._is_active():
                code = ErrorCode.not_controller
            elif entity.broker_id not in (await self._cluster.catch_up()).agents:
                code = ErrorCode.broker_id_not_registered
            else:
                answer = await self._api.heartbeat(
                    entity.broker_id,
                    entity.broker_epoch,
                    metadata_offset=entity.current_metadata_offset,
                    want_fence=entity.want_fence,
                    want_shut_down=entity.want_shut_down,
                    session_timeout_ms=self._in_force.current().broker_session_timeout_ms,
                )
                caught_up, fenced, shut_down = answer.is_caught_up, answer.is_fenced, answer.should_shut_down
        except HeadraceError as error:
            code = ErrorCode(membership_error(error))
        response = schema.response(
            error_code=code,
            is_caught_up=caught_up,
            is_fenced=fenced,
            should_shut_down=shut_down,
        )
        return reply(request, response)


class UnregisterBroker:
    """The handler of key 64, version 0. With `may_act`, a standby controller's listener refuses."""

    def __init__(self, cluster: ClusterView, api: ClusterApi, may_act: IsActive = lambda: True) -> None:
        self._cluster = cluster
        self._api = api
        self._may_act = may_act

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, UnregisterBrokerRequest)
        code, message = ErrorCode.none, None
        if not self._may_act():
            answer = schema.response(
                error_code=ErrorCode.not_controller,
                error_message="this controller is a standby",
            )
            return reply(request, answer)
        try:
            image = await self._cluster.catch_up()
            agent = image.agents.get(entity.broker_id)
            if agent is not None:
                await self._api.unregister_agent(agent.node_id, agent.broker_epoch)
            elif entity.broker_id not in image.unregistered:
                code, message = ErrorCode.broker_id_not_registered, f"no broker {entity.broker_id} was ever registered"
        except HeadraceError as error:
            code, message = ErrorCode(membership_error(error)), str(error)
        return reply(request, schema.response(error_code=code, error_message=message))


def _registration(entity: Any) -> AgentRegistration:
    """The request as the metastore's value type."""
    listeners = tuple(
        Listener(listener.name, listener.host, listener.port, listener.security_protocol)
        for listener in entity.listeners
    )
    return AgentRegistration(
        node_id=entity.broker_id,
        incarnation_id=entity.incarnation_id,
        host=listeners[0].host,
        port=listeners[0].port,
        rack=entity.rack,
        cluster_id=entity.cluster_id,
        features={f.name: FeatureRange(f.min_supported_version, f.max_supported_version) for f in entity.features},
        listeners=listeners,
    )
