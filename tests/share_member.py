"""A member of a share group over a socket, one request at a time: cheap, and a test decides each step.

Place: for tests of agents as processes. Consumers without sockets are in tests/simulation/shares.
It asks again while an agent is not the coordinator, is not ready or ends the connection, for PATIENCE_SECONDS at most.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.messages import message
from headrace.protocol.client.transport import ClientConfig, connect, exchange, parse_servers
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.reader import walk_batches

PATIENCE_SECONDS = 240.0
PAUSE_SECONDS = 0.1
HEARTBEAT_SECONDS = 3.0
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_AGAIN = frozenset(
    (
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.share_session_not_found,
    )
)


class Delivered(NamedTuple):
    """A record that this member acquired. `attempt`: the number of its delivery. `value`: None of an offset without a
    record, which the member acknowledges as a gap by itself.
    """

    partition: int
    offset: int
    value: str | None
    attempt: int


class RefusedError(Exception):
    """An answer with another code than a member expects."""


class ShareMember:
    """Use it with `with`: it leaves the group at the end, unless it was killed."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, client_id: str = "member") -> None:
        """`bootstrap`: an agent. Heartbeats go to the coordinator that it names."""
        self.group, self.member_id = group, str(uuid.uuid4())
        self._topic, self._client_id = topic, client_id
        self._addresses = parse_servers(bootstrap)
        self._turn = 0
        self._config = ClientConfig(self._addresses, client_id, 60_000)
        self._connection: socket.socket | None = None
        self._topic_id = uuid.UUID(int=0)
        self._partitions = 0
        self._session = 0
        self._heartbeat_at = 0.0

    def __enter__(self) -> ShareMember:
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def join(self) -> None:
        """Join the group, and learn about the topic."""
        self._until(self._look_up)
        self._until(lambda: self._heartbeat(0))

    def leave(self) -> None:
        """Leave the group; nothing if no agent answers."""
        with contextlib.suppress(OSError, CorruptError, RefusedError):
            self._heartbeat(-1)
        self.kill()

    def kill(self) -> None:
        """End the connection without a word."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._session = None, 0

    def poll(self, most: int = 100, wait_ms: int = 200) -> list[Delivered]:
        """Return what the member acquires, if anything. A session that is lost begins again."""
        if time.monotonic() > self._heartbeat_at + HEARTBEAT_SECONDS:
            self._until(lambda: self._heartbeat(0))
        found: list[Delivered] = self._until(lambda: self._fetch(most, wait_ms))
        gaps = [each for each in found if each.value is None]
        if gaps:
            self.acknowledge(gaps, GAP)
        return [each for each in found if each.value is not None]

    def acknowledge(self, records: Iterable[Delivered], kind: int = ACCEPT) -> bool:
        """Return whether every acknowledgement was answered as applied; False if that is not known."""
        by_partition: dict[int, list[int]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record.offset)
        m = message(ApiKey.SHARE_ACKNOWLEDGE, 2)
        partitions = tuple(
            m.make(
                "AcknowledgePartition",
                partition_index=index,
                acknowledgement_batches=tuple(
                    m.make("AcknowledgementBatch", first_offset=offset, last_offset=offset, acknowledge_types=(kind,))
                    for offset in sorted(offsets)
                ),
            )
            for index, offsets in by_partition.items()
        )
        request = m.request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._session,
            is_renew_ack=kind == RENEW,
            topics=(m.make("AcknowledgeTopic", topic_id=self._topic_id, partitions=partitions),),
        )
        try:
            answer = self._ask(m, request)
        except (OSError, CorruptError):
            self.kill()
            return False
        if answer.error_code is not ErrorCode.none:
            self.kill()
            return False
        self._session += 1
        return all(part.error_code is ErrorCode.none for topic in answer.responses for part in topic.partitions)

    # -- one request

    def _until(self, work: Any) -> Any:
        """Do it until it succeeds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return work()
            except (OSError, CorruptError, RefusedError):
                self.kill()
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _ask(self, m: Any, request: Any) -> Any:
        if self._connection is None:
            self._turn += 1
            self._connection = connect(self._config, self._addresses[self._turn % len(self._addresses)])
        return exchange(self._connection, self._client_id, request, m.response_type)

    def _look_up(self) -> None:
        m = message(ApiKey.METADATA, 12)
        asked = m.make("MetadataRequestTopic", topic_id=None, name=self._topic)
        request = m.request(topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
        (topic,) = self._ask(m, request).topics
        if topic.error_code is not ErrorCode.none:
            raise RefusedError(topic.error_code)
        self._topic_id, self._partitions = topic.topic_id, len(topic.partitions)

    def heartbeat_code(self, epoch: int, address: str | None = None) -> ErrorCode:
        """Send one heartbeat to the coordinator, or to the agent at this address; its code."""
        if address is None:
            m = message(ApiKey.FIND_COORDINATOR, 3)
            found = self._ask(m, m.request(key=self.group, key_type=0))
            if found.error_code is not ErrorCode.none:
                return ErrorCode(found.error_code)
            address = f"{found.host}:{found.port}"
        m = message(ApiKey.SHARE_GROUP_HEARTBEAT, 1)
        request = m.request(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=(self._topic,) if epoch == 0 else None,
        )
        with connect(self._config, parse_servers(address)[0]) as connection:
            return ErrorCode(exchange(connection, self._client_id, request, m.response_type).error_code)

    def _heartbeat(self, epoch: int) -> None:
        code = self.heartbeat_code(epoch)
        if code is not ErrorCode.none:
            raise RefusedError(code)
        self._heartbeat_at = time.monotonic()

    def _fetch(self, most: int, wait_ms: int) -> list[Delivered]:
        m = message(ApiKey.SHARE_FETCH, 2)
        topics: tuple[Any, ...] = ()
        if not self._session:
            partitions = tuple(
                m.make("FetchPartition", partition_index=index, acknowledgement_batches=())
                for index in range(self._partitions)
            )
            topics = (m.make("FetchTopic", topic_id=self._topic_id, partitions=partitions),)
        request = m.request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._session,
            max_wait=timedelta(milliseconds=wait_ms),
            min_bytes=1,
            max_bytes=1 << 24,
            max_records=most,
            batch_size=most,
            share_acquire_mode=0,
            is_renew_ack=False,
            topics=topics,
            forgotten_topics_data=(),
        )
        answer = self._ask(m, request)
        if answer.error_code is not ErrorCode.none:
            raise RefusedError(answer.error_code)
        self._session += 1
        found: list[Delivered] = []
        for topic in answer.responses:
            for part in topic.partitions:
                if part.error_code in _AGAIN:
                    continue
                if part.error_code is not ErrorCode.none:
                    raise RefusedError(part.error_code)
                found += _records(part)
        return found


def _records(part: Any) -> list[Delivered]:
    data = bytes(part.records or b"")
    values = {
        record.offset: (record.value or b"").decode()
        for position, header in walk_batches(memoryview(data))
        if not header.is_control
        for record in decode_records(memoryview(data)[position : position + header.size])
    }
    return [
        Delivered(part.partition_index, offset, values.get(offset), each.delivery_count)
        for each in part.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    ]
