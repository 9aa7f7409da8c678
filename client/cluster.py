"""Sends a client's requests to the nodes that answer them: leaders, coordinators, or any node.

Place: under producer.py and consumer.py; aiokafka's connections do TLS and SASL.
Invariant: a request is sent once. What came of it is unknown after UnavailableError. `topics` is replaced as a whole by
each answer to a Metadata request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaError
from kio.schema.errors import ErrorCode

from headrace.client.messages import (
    VERSION,
    ApiMessage,
    ClusterMetadata,
    Frame,
    OrderedTopic,
    decode_metadata_response,
    encode_metadata_request,
    message,
)
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError, UnavailableError

ANY_NODE = -1
MAIN, FETCHES = "main", "fetches"
"""Connections of a node by their use: a long poll delays the answers after it."""


@dataclass(frozen=True)
class ClientSettings:
    """`security`: arguments of aiokafka's connections, such as security_protocol, ssl_context and sasl_mechanism."""

    bootstrap_servers: Sequence[str]
    client_id: str = "headrace-client"
    request_timeout_ms: int = 40_000
    retry_backoff_ms: int = 100
    security: Mapping[str, Any] = field(default_factory=dict)


class ClientCluster:
    """`close` it at the end."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.topics: Mapping[str, OrderedTopic] = {}
        self.errors: Mapping[str, int] = {}
        """Of topics that were asked for and are not described."""
        self._nodes: Mapping[int, tuple[str, int]] = {}
        self._connections: dict[tuple[int, str], AIOKafkaConnection] = {}
        """By node and use."""
        self._opening: defaultdict[tuple[int, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def close(self) -> None:
        """Close all connections."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()

    async def send(self, node_id: int, frame: Frame, use: str = MAIN) -> memoryview:
        """The response's body. UnavailableError if none comes."""
        try:
            connection = await self._connection(node_id, use)
            body = await connection.send(frame)
        except (KafkaError, OSError, TimeoutError, EOFError) as error:
            if (broken := self._connections.pop((node_id, use), None)) is not None:
                broken.close()
            raise UnavailableError(f"no answer: node={node_id} {type(error).__name__} {error}") from error
        assert isinstance(body, memoryview)
        return body

    async def call(self, node_id: int, api: ApiMessage, **request: Any) -> Any:
        """Send a request as `send` does, with entities."""
        frame = Frame(api.api_key, api.version, api.encode(**request), flexible=api.flexible)
        return api.decode(await self.send(node_id, frame))

    async def refresh(self, names: Collection[str], node_id: int | None = None) -> Mapping[str, OrderedTopic]:
        """Ask for these topics; those that cannot be described now are left out. InvalidError for another system."""
        frame = Frame(ApiKey.METADATA, VERSION, encode_metadata_request(names), flexible=True)
        found: ClusterMetadata = decode_metadata_response(
            await self.send(self.any_node() if node_id is None else node_id, frame)
        )
        if not found.has_counts:
            raise InvalidError("the cluster does not describe partition counts")
        self._nodes, self.topics, self.errors = found.nodes, found.topics, found.errors
        return self.topics

    def leader(self, topic: str, partition: int) -> int:
        """UnavailableError if none is known."""
        described = self.topics.get(topic)
        node_id = ANY_NODE if described is None else described.leaders.get(partition, ANY_NODE)
        if node_id not in self._nodes:
            raise UnavailableError(f"no leader known: topic={topic} partition={partition}")
        return node_id

    async def coordinator(self, group_id: str) -> int:
        """The node that coordinates the group; UnavailableError while there is none."""
        found = await self.call(self.any_node(), message(ApiKey.FIND_COORDINATOR, 3), key=group_id, key_type=0)
        if found.error_code is not ErrorCode.none:
            raise UnavailableError(f"no coordinator: group={group_id} {found.error_code.name}")
        self._nodes = {**self._nodes, found.node_id: (found.host, found.port)}
        return int(found.node_id)

    def any_node(self) -> int:
        """Return a node for questions that every agent answers; ANY_NODE: the bootstrap servers."""
        connected = [node_id for node_id, use in self._connections if use == MAIN and node_id in self._nodes]
        return connected[0] if connected else next(iter(self._nodes), ANY_NODE)

    async def _connection(self, node_id: int, use: str) -> AIOKafkaConnection:
        key = node_id, use
        async with self._opening[key]:
            connection = self._connections.get(key)
            if connection is None or not connection.connected():
                connection = self._connections[key] = await self._connect(node_id)
        return connection

    async def _connect(self, node_id: int) -> AIOKafkaConnection:
        """Connect to the node; if its address is not known, to the first bootstrap server that answers.

        OSError if none does. The node's address is forgotten then: the next attempt asks the bootstrap servers.
        """
        if node_id in self._nodes:
            addresses = [self._nodes[node_id]]
        else:
            addresses = [_address(text) for text in self.settings.bootstrap_servers]
        failure: Exception = UnavailableError("no address")
        for host, port in addresses:
            try:
                return await create_conn(
                    host,
                    port,
                    client_id=self.settings.client_id,
                    request_timeout_ms=self.settings.request_timeout_ms,
                    **self.settings.security,
                )
            except (KafkaError, OSError, TimeoutError) as error:
                failure = error
        self._nodes = {other: address for other, address in self._nodes.items() if other != node_id}
        raise OSError(f"cannot connect: node={node_id} {failure}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
