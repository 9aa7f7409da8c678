"""Sends the tools' requests to the brokers of a Kafka cluster that answer them.

Place: under `headrace topics`, `groups`, `configs` and `records`, and under links; works with any Kafka broker.
messages.py makes the requests.
Invariant: API versions are negotiated with the first broker that answers. If a broker answers that it is the wrong
one, the tool looks up the right one again, a bounded number of times. A request that may have been carried out is
not sent again automatically.
Source: KIP-35 (versions), KIP-511.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.messages import VERSIONS, Message, message
from headrace.protocol.client.transport import (
    ClientConfig,
    connect,
    exchange,
    exchange_frame,
    named_protocol,
    request_frame,
)
from headrace.protocol.link_requests import READS, LinkRequest, LinkResponse, decode_link_response, encode_link_request
from headrace.protocol.own_requests import (
    CountRequest,
    ScaleRequest,
    ScaleResponse,
    decode_count_response,
    decode_scale_response,
    encode_count_request,
    encode_scale_request,
)
from headrace.storage.clock import SystemClock
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError, RetryableError, UnavailableError

T = TypeVar("T")
ANY = -1
"""Node id for: any broker, the first that answered."""
GROUP, TRANSACTIONAL_ID = 0, 1
"""What has a coordinator."""
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
    ErrorCode.group_id_not_found: "group does not exist",
    ErrorCode.invalid_group_id: "invalid group id",
    ErrorCode.non_empty_group: "the group has members: stop them first",
    ErrorCode.offset_out_of_range: "the offset is outside the log",
    ErrorCode.unknown_topic_or_partition: "topic or partition does not exist",
    ErrorCode.broker_id_not_registered: "the broker is not registered",
}
"""Used if the answer contains no error message."""


class WrongBrokerError(RetryableError):
    """The broker did nothing: another broker is the leader, coordinator or controller now, or it is not ready yet."""


class KafkaCluster:
    """Use it with `with`; `pause` waits the given number of seconds."""

    def __init__(self, config: ClientConfig, pause: Callable[[float], None]) -> None:
        self._config = config
        self._pause = pause
        self._connections: dict[int, socket.socket] = {}
        self._opening: dict[int, socket.socket] = {}
        """What can end connections that have not ended their handshakes."""
        self._addresses: dict[int, tuple[str, int]] = {}
        self._served: dict[int, tuple[int, int]] = {}
        self.controller = ANY

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """A cluster that waits by this machine's clock."""
        return cls(config, lambda seconds: asyncio.run(SystemClock().sleep(seconds)))

    def __enter__(self) -> Self:
        failures = []
        for address in self._config.bootstrap_servers:
            try:
                self._connections[ANY] = self._connect(ANY, address)
                answer = exchange(
                    self._connections[ANY], self._config.client_id, ApiVersionsRequest(), ApiVersionsResponse
                )
            except (OSError, CorruptError) as error:
                seconds = self._config.request_timeout_ms / 1_000
                spoken = None if self._config.login.encrypts else named_protocol(address, seconds)
                failures.append(f"{address[0]}:{address[1]} {spoken or error}")
                continue
            self._served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            return self
        raise UnavailableError(f"no server answered: {'; '.join(failures)}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for connection in self._connections.values():
            connection.close()

    def serves(self, api_key: int) -> bool:
        """Return whether the cluster and this client share a version of this API."""
        low, high = self._served.get(api_key, (0, -1))
        return max(low, VERSIONS[api_key][0]) <= min(high, VERSIONS[api_key][1])

    def newest(self, api_key: ApiKey, most: int) -> int:
        """The newest version of the API that the cluster serves, at most this one."""
        return min(self._served.get(api_key, (0, -1))[1], most)

    def message(self, api_key: ApiKey) -> Message:
        """The API in the newest version that both sides support; InvalidError if there is none."""
        if not self.serves(api_key):
            raise InvalidError(f"the cluster does not support this API: api={api_key.name.lower()}")
        return message(api_key, min(self._served[api_key][1], VERSIONS[api_key][1]))

    def ask(self, api_key: ApiKey, request: Any, node_id: int = ANY) -> Any:
        """The response of one broker; UnavailableError if it cannot be reached or does not answer."""
        response_type, most = self.message(api_key).response_type, self._config.answer_bytes_max
        return self._on(
            node_id, lambda connection: exchange(connection, self._config.client_id, request, response_type, most)
        )

    def ask_in(self, m: Message, request: Any, node_id: int) -> Any:
        """The response to a request in a version that `message` would not choose; errors as `ask`."""
        most = self._config.answer_bytes_max
        return self._on(
            node_id, lambda connection: exchange(connection, self._config.client_id, request, m.response_type, most)
        )

    def ask_in_bytes(self, request: Any, node_id: int) -> memoryview:
        """The bytes of the response, after their length; errors as `ask`. They are the caller's alone."""
        frame, most = request_frame(self._config.client_id, request), self._config.answer_bytes_max
        return memoryview(self._on(node_id, lambda connection: exchange_frame(connection, frame, bytes_max=most)))

    def hang_up(self, node_id: int) -> None:
        """End the connection to a broker, also while another thread waits for an answer: it gets UnavailableError."""
        for connection in (self._connections.pop(node_id, None), self._opening.pop(node_id, None)):
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _on(self, node_id: int, work: Callable[[socket.socket], T]) -> T:
        """Return what `work` returns with the connection to a broker. A connection that failed, or on which something
        came that is no answer, is closed.
        """
        connection = self._connections.get(node_id)
        try:
            if connection is None:
                if node_id not in self._addresses:
                    raise UnavailableError(f"broker is not known: node={node_id}")
                connection = self._connections[node_id] = self._connect(node_id, self._addresses[node_id])
            return work(connection)
        except (OSError, CorruptError) as error:
            if connection is not None:
                connection.close()
                if self._connections.get(node_id) is connection:
                    del self._connections[node_id]
            if isinstance(error, CorruptError):
                raise
            reason = "the connection was ended here" if error.errno == errno.EBADF else error
            raise UnavailableError(f"broker did not answer: node={node_id} {reason}") from error

    def set_partition_count(self, topic: str, count: int, timeout_ms: int) -> None:
        """Headrace's request for a count, also a lower one; InvalidError if it is refused or the cluster is another.

        Kafka's brokers end the connection for an API that they do not know.
        """
        request = CountRequest(topic, count, timeout_ms)
        try:
            answer = decode_count_response(
                memoryview(
                    exchange_frame(self._connections[ANY], encode_count_request(request, self._config.client_id, 1))
                )
            )
        except OSError as error:
            raise UnavailableError(f"no answer to a request that only Headrace serves: {error}") from error
        require(ErrorCode(answer.error_code), answer.message, topic)

    def scale_topic(self, request: ScaleRequest, tries: int = 1) -> ScaleResponse:
        """Headrace's request to double a topic; errors as `set_partition_count`.

        `tries`: how many agents are asked if answers are lost. More than one only for a request that does nothing
        more when it is sent again.
        """
        frame = encode_scale_request(request, self._config.client_id, 1)
        answer = decode_scale_response(self._exchange_own(frame, tries))
        require(ErrorCode(answer.error_code), answer.message, request.topic)
        return answer

    def links(self, request: LinkRequest) -> LinkResponse:
        """Headrace's request about links; errors as `set_partition_count`. What only reads asks other agents, too."""
        frame = encode_link_request(request, self._config.client_id, 1)
        answer = decode_link_response(self._exchange_own(frame, TRIES if request.op in READS else 1))
        require(ErrorCode(answer.error_code), answer.message, f"link {request.link}" if request.link else "")
        return answer

    def _exchange_own(self, frame: bytes, tries: int) -> memoryview:
        """The answer to a request that only Headrace serves, of the first of `tries` agents that gives one."""
        for left in reversed(range(tries)):
            try:
                return memoryview(exchange_frame(self._connections[ANY], frame))
            except OSError as error:
                if not left:
                    raise UnavailableError(f"no answer to a request that only Headrace serves: {error}") from error
                self._pause(PAUSE_SECONDS)
                self._go_to_another()
        raise AssertionError("at least one try")

    def _go_to_another(self) -> None:
        """Let ANY be the first of all known servers that can be reached, if there is one."""
        self._connections[ANY].close()
        for address in dict.fromkeys([*self._addresses.values(), *self._config.bootstrap_servers]):
            with contextlib.suppress(OSError):
                self._connections[ANY] = self._connect(ANY, address)
                return

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._pause(seconds)

    def look_again(self, work: Callable[[], T]) -> T:
        """The result of `work`, repeated while it reaches the wrong broker."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(WrongBrokerError):
                return work()
            self._pause(PAUSE_SECONDS)
        return work()

    def metadata(self, names: Iterable[str] | None = None) -> list[Any]:
        """Topics as in MetadataResponse, by name (None: all). NotFoundError names the missing ones."""
        found = self.look_again(lambda: self._metadata(names))
        missing = [topic.name for topic in found if topic.error_code is not ErrorCode.none]
        if missing:
            raise NotFoundError(f"topic does not exist: {', '.join(missing)}")
        return sorted(found, key=lambda topic: str(topic.name))

    def named_topics(self, names: Iterable[str]) -> list[Any]:
        """Return what the cluster says of each topic, with its error."""
        return self._metadata(names)

    def topic_operations(self, names: Iterable[str]) -> dict[str, int]:
        """Return what the caller may do with each topic that exists, as Kafka's bits of operations (KIP-430)."""
        found = self._metadata(names, topic_operations=True)
        return {
            str(topic.name): int(topic.topic_authorized_operations)
            for topic in found
            if topic.error_code is ErrorCode.none and hasattr(topic, "topic_authorized_operations")
        }

    def nodes(self) -> list[int]:
        """The brokers' node ids."""
        self._metadata(())
        return sorted(self._addresses)

    def coordinator(self, key: str, key_type: int = GROUP) -> int:
        """The node that coordinates a group, or a transactional id."""
        m = self.message(ApiKey.FIND_COORDINATOR)
        answer = self.ask(ApiKey.FIND_COORDINATOR, m.request(key=key, key_type=key_type))
        require(answer.error_code, answer.error_message)
        self._addresses[answer.node_id] = (answer.host, answer.port)
        return int(answer.node_id)

    def _metadata(self, names: Iterable[str] | None, *, topic_operations: bool = False) -> list[Any]:
        answer = self.whole_metadata(names, topic_operations=topic_operations)
        if any(p.error_code is ErrorCode.leader_not_available for topic in answer.topics for p in topic.partitions):
            raise WrongBrokerError("a partition has no leader")
        return list(answer.topics)

    def whole_metadata(self, names: Iterable[str] | None, *, topic_operations: bool = False) -> Any:
        """The answer of any broker on the cluster and these topics (None: all); it says where the brokers are."""
        m = self.message(ApiKey.METADATA)
        topics = None if names is None else tuple(m.make("MetadataRequestTopic", topic_id=None, name=n) for n in names)
        request = m.request(
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=topic_operations,
            include_cluster_authorized_operations=False,
        )
        answer = self.ask(ApiKey.METADATA, request)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self.controller = int(answer.controller_id) if answer.controller_id in self._addresses else ANY
        return answer

    def _connect(self, node_id: int, address: tuple[str, int]) -> socket.socket:
        try:
            return connect(self._config, address, lambda opened: self._opening.update({node_id: opened.dup()}))
        finally:
            if opening := self._opening.pop(node_id, None):
                opening.close()


def require(code: ErrorCode, message: str | None = None, about: str = "") -> None:
    """Raise an error for every code but NONE; WrongBrokerError if the right broker must be looked up again."""
    if code is ErrorCode.none:
        return
    text = f"refused: {f'{about}: ' if about else ''}{code.name}: {message or _REASONS.get(code, 'no reason given')}"
    if code in _LOOK_AGAIN:
        raise WrongBrokerError(text)
    raise RetryableError(text) if code.retriable else InvalidError(text)
