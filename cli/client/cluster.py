"""A Kafka cluster as the tools see it: its brokers, who leads, who coordinates, and requests sent to them.

Place: under `headrace topics`, `groups`, `configs` and `records`; any broker that speaks Kafka will do.
Invariant: versions are agreed with the first broker that answers. A broker that says it is the wrong one is
believed: its answer makes the tool look again, a bounded number of times; what may have been done already is not
sent twice by itself. If the process dies here the request may or may not have been carried out.
Source: KIP-35 (versions), KIP-511.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from headrace.cli.client.messages import VERSIONS, Message, message
from headrace.cli.client.transport import ClientConfig, exchange
from headrace.protocol.api_keys import ApiKey
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, NotFoundError, RetryableError, UnavailableError

T = TypeVar("T")
ANY = -1
"""Node: whichever broker answered first."""
TRIES = 10
PAUSE_SECONDS = 0.5
_LOOK_AGAIN = frozenset(
    (
        ErrorCode.not_controller,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
    )
)


_REASONS = {
    ErrorCode.group_id_not_found: "there is no such group",
    ErrorCode.invalid_group_id: "no group can have this name",
    ErrorCode.non_empty_group: "the group has members: stop them first",
    ErrorCode.offset_out_of_range: "the log does not hold this offset",
    ErrorCode.unknown_topic_or_partition: "there is no such topic or partition",
    ErrorCode.broker_id_not_registered: "the broker is not registered",
}
"""In place of a broker's own words, where the answer has none."""


class WrongBrokerError(RetryableError):
    """The broker did nothing: somebody else leads, coordinates or controls now."""


class KafkaCluster:
    """Use as `with`; `pause` waits so many seconds."""

    def __init__(self, config: ClientConfig, pause: Callable[[float], None]) -> None:
        self._config = config
        self._pause = pause
        self._connections: dict[int, socket.socket] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._served: dict[int, tuple[int, int]] = {}
        self.controller = ANY

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """It waits by this machine's clock."""
        return cls(config, lambda seconds: asyncio.run(SystemClock().sleep(seconds)))

    def __enter__(self) -> Self:
        failures = []
        for address in self._config.bootstrap_servers:
            try:
                self._connections[ANY] = self._connect(address)
                answer = exchange(
                    self._connections[ANY], self._config.client_id, ApiVersionsRequest(), ApiVersionsResponse
                )
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]} {error}")
                continue
            self._served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            return self
        raise UnavailableError(f"no server answered: {'; '.join(failures)}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for connection in self._connections.values():
            connection.close()

    def serves(self, api_key: int) -> bool:
        """Whether the cluster has this API in a version that is understood here."""
        low, high = self._served.get(api_key, (0, -1))
        return max(low, VERSIONS[api_key][0]) <= min(high, VERSIONS[api_key][1])

    def message(self, api_key: ApiKey) -> Message:
        """The API in the newest version that both sides know; InvalidError when there is none."""
        if not self.serves(api_key):
            raise InvalidError(f"the cluster does not serve this request: api={api_key.name.lower()}")
        return message(api_key, min(self._served[api_key][1], VERSIONS[api_key][1]))

    def ask(self, api_key: ApiKey, request: Any, node_id: int = ANY) -> Any:
        """The answer of one broker; UnavailableError when it cannot be reached or falls silent."""
        try:
            if node_id not in self._connections:
                self._connections[node_id] = self._connect(self._addresses[node_id])
            connection = self._connections[node_id]
            return exchange(connection, self._config.client_id, request, self.message(api_key).response_type)
        except OSError as error:
            if node_id in self._connections:
                self._connections.pop(node_id).close()
            raise UnavailableError(f"broker did not answer: node={node_id} {error}") from error

    def look_again(self, work: Callable[[], T]) -> T:
        """The result of `work`, repeated while it meets the wrong broker."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(WrongBrokerError):
                return work()
            self._pause(PAUSE_SECONDS)
        return work()

    def metadata(self, names: Iterable[str] | None = None) -> list[Any]:
        """Topics as MetadataResponse has them, by name (None: all). NotFoundError names what is not there."""
        found = self.look_again(lambda: self._metadata(names))
        missing = [topic.name for topic in found if topic.error_code is not ErrorCode.none]
        if missing:
            raise NotFoundError(f"there is no such topic: {', '.join(missing)}")
        return sorted(found, key=lambda topic: str(topic.name))

    def nodes(self) -> list[int]:
        """The brokers' node ids."""
        self._metadata(())
        return sorted(self._addresses)

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates a group."""
        m = self.message(ApiKey.FIND_COORDINATOR)
        answer = self.ask(ApiKey.FIND_COORDINATOR, m.request(key=group_id, key_type=0))
        require(answer.error_code, answer.error_message)
        self._addresses[answer.node_id] = (answer.host, answer.port)
        return int(answer.node_id)

    def _metadata(self, names: Iterable[str] | None) -> list[Any]:
        m = self.message(ApiKey.METADATA)
        topics = None if names is None else tuple(m.make("MetadataRequestTopic", topic_id=None, name=n) for n in names)
        request = m.request(
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )
        answer = self.ask(ApiKey.METADATA, request)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.controller = int(answer.controller_id) if answer.controller_id in self._addresses else ANY
        if any(p.error_code is ErrorCode.leader_not_available for topic in answer.topics for p in topic.partitions):
            raise WrongBrokerError("a partition has no leader")
        return list(answer.topics)

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        return socket.create_connection(address, self._config.request_timeout_ms / 1000)


def require(code: ErrorCode, message: str | None = None, about: str = "") -> None:
    """An error for every code but NONE: WrongBrokerError where the right broker is to be looked for again."""
    if code is ErrorCode.none:
        return
    text = f"refused: {f'{about}: ' if about else ''}{code.name}: {message or _REASONS.get(code, 'no reason given')}"
    if code in _LOOK_AGAIN:
        raise WrongBrokerError(text)
    raise RetryableError(text) if code.retriable else InvalidError(text)
