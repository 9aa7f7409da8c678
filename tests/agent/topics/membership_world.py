"""An agent's cluster handlers on a real metastore, and requests that kio writes and reads."""

from __future__ import annotations

import io
import uuid
from importlib import import_module
from typing import Any

from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from headrace.agent.apis.cluster import CONTROLLER_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import ControllerParts
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.serve.controller_role import ControllerView
from headrace.agent.topics.metadata.routing_requests import DescribeCluster
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler
from headrace.protocol.typed import schema
from headrace.storage.clock import SystemClock
from tests.agent.client_calls import a_request

SESSION_MS = 18_000
CONTROLLER = 7


class World:
    """The handlers of one process's controller; active once `lead` was called."""

    def __init__(self, api: PostgresMetastore) -> None:
        self.api = api
        self.view = ControllerView(CONTROLLER, api.cluster_id, api.commit_shards, MetadataFollower(api.cluster))
        self.dispatcher = Dispatcher(lambda: self.view.image)
        self.is_active = False
        parts = ControllerParts(
            cluster=self.view,
            metastore=api,
            in_force=SettingsInForce(Settings(), lambda: self.view.image),
            change=LogChange(self.view, api.cluster, SystemClock()),
            is_active_controller=lambda: self.is_active,
            shared=None,
        )
        handlers: dict[int, RequestHandler] = {
            ApiKey.DESCRIBE_CLUSTER: DescribeCluster(self.view, shared=None),
            **{api_key: row.handler(parts) for api_key, row in CONTROLLER_ROWS.items()},
        }
        for api_key, handler in handlers.items():
            self.dispatcher.register(api_key, handler)

    async def ask(self, api_key: int, version: int, /, **fields: Any) -> Any:
        """See `ask`; received now."""
        return await ask(self.dispatcher, api_key, version, received_at=SystemClock().monotonic(), **fields)

    async def lead(self, controller_id: int = CONTROLLER) -> None:
        """A process with this node id becomes the active controller."""
        lease = await self.api.controller.hold_controller_lease(controller_id, uuid.uuid4(), 60_000)
        self.is_active = lease.is_own and controller_id == CONTROLLER

    async def agent(self, node_id: int, rack: str | None = None, *, unfence: bool = True) -> int:
        """Register an agent; its broker epoch."""
        registration = AgentRegistration(node_id, uuid.uuid4(), f"agent-{node_id}", 9092, rack)
        epoch = (await self.api.cluster.register_agent(registration)).broker_epoch
        if unfence:
            answer = await self.api.cluster.heartbeat(
                node_id,
                epoch,
                metadata_offset=await self.api.cluster.metadata_head(),
                want_fence=False,
                session_timeout_ms=SESSION_MS,
            )
            assert not answer.is_fenced
        await self.view.catch_up()
        return epoch

    async def restart(self, node_id: int) -> int:
        """The agent registers again, as after a restart; its broker epoch."""
        epoch = self.view.image.agents[node_id].broker_epoch
        await self.api.cluster.unregister_agent(node_id, epoch)
        return await self.agent(node_id)

    async def topic(self, name: str, partitions: int) -> None:
        head = await self.api.cluster.metadata_head()
        assert await self.api.topics.create_topics(head, [NewTopic(name, uuid.uuid4(), partitions, {})])
        await self.view.catch_up()


async def ask(
    dispatcher: Dispatcher,
    api_key: int,
    version: int,
    /,
    *,
    received_at: float,
    principal: str | None = None,
    **fields: Any,
) -> Any:
    """Write a request with kio, have it answered, read the reply to its last byte."""
    served = schema(api_key, version)
    answer = await exchange(dispatcher, api_key, version, received_at=received_at, principal=principal, **fields)
    found, consumed = entity_reader(served.response_type)(memoryview(answer), 0)
    assert consumed == len(answer)
    return found


async def exchange(
    dispatcher: Dispatcher,
    api_key: int,
    version: int,
    /,
    *,
    received_at: float,
    principal: str | None = None,
    is_by_token: bool = False,
    **fields: Any,
) -> bytes:
    """The reply's body as it is sent."""
    served = schema(api_key, version)
    entity = _make(_module(api_key, version), served.request_type, fields)
    body = io.BytesIO()
    entity_writer(served.request_type)(body, entity)
    request = a_request(api_key, version, body.getvalue(), received_at=received_at)
    request.connection.principal, request.connection.is_by_token = principal, is_by_token
    response = await dispatcher.handle(request)
    assert response.buffers is not None
    return b"".join(response.buffers)[5 if served.flexible and api_key != ApiKey.API_VERSIONS else 4 :]


def _module(api_key: int, version: int) -> Any:
    return import_module(f"kio.schema.{api_key_map[api_key]}.v{version}.request")


def _make(module: Any, cls: type[Any], fields: dict[str, Any]) -> Any:
    """An entity; a field that the version lacks is left out, a list of (class name, fields) is made in the same way."""
    known = cls.__dataclass_fields__
    values = {}
    for name, value in fields.items():
        if name not in known:
            continue
        if isinstance(value, list):
            value = tuple(_make(module, getattr(module, part[0]), part[1]) for part in value)
        values[name] = value
    return cls(**values)
