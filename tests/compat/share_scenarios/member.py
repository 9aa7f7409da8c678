"""A member of a share group that sends the requests that a scenario decides, also wrong ones, and shows the answers.

Place: under the scenarios. tests/share_member.py is a member that works as a client should.
Invariant: an answer is shown in words that say all of it that clients act on: acquired ranges as `0-9x1` (offsets,
number of the delivery), error codes by name. Of the values that servers choose freely (ids, addresses) it shows none.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.messages import message
from headrace.protocol.client.transport import ClientConfig, connect, exchange
from tests.compat.share_scenarios.server import PATIENCE_SECONDS, Server, until

NOTHING = "nothing"
REFUSED = "refused: "
BATCH_OPTIMIZED, RECORD_LIMIT = range(2)
GAP_TYPE, ACCEPT_TYPE, RELEASE_TYPE, REJECT_TYPE, RENEW_TYPE = range(5)
CLOSING = -1
"""The epoch that ends a share session, and the membership."""
WAIT_MS = 500
_AGAIN = frozenset(
    (
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    )
)


class Acknowledgement(NamedTuple):
    """One range of offsets, and a type for all of them or one for each."""

    first: int
    last: int
    types: tuple[int, ...]


def accept(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, (ACCEPT_TYPE,))


def release(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, (RELEASE_TYPE,))


def reject(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, (REJECT_TYPE,))


def renew(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, (RENEW_TYPE,))


class RawMember:
    """Fetches and acknowledges over one connection to the first address. Use it with `with`: the connection ends there,
    and the member does not leave the group.

    The fields may be changed between requests.
    """

    def __init__(self, server: Server, group: str, topic_id: uuid.UUID | None, member_id: str | None = None) -> None:
        self.group = group
        self.topic_id = topic_id
        self.member_id = member_id if member_id is not None else str(uuid.uuid4())
        self.member_epoch = 0
        self.session_epoch = 0
        """The epoch of the next request of the share session."""
        self.version = 2
        self.max_records, self.max_bytes, self.min_bytes = 100, 50_000_000, 1
        self.wait_ms = WAIT_MS
        self.acquire_mode = BATCH_OPTIMIZED
        self.is_renewing = False
        self.lock_ms = 0
        """Lock duration of the last answer to a fetch."""
        self._server = server
        self._client = ClientConfig(server.addresses, "raw-member", int(PATIENCE_SECONDS) * 1000)
        self._connection: socket.socket | None = None

    def __enter__(self) -> RawMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    # -- the group

    def heartbeat(self, epoch: int, *topics: str) -> str:
        """Send one heartbeat to the coordinator and return the name of its code. No topics: no change of them."""
        return _name(self._heartbeat(epoch, topics).error_code)

    def join(self, *topics: str, partitions: int = 1) -> None:
        """Join the group and wait until so many partitions are assigned."""
        self.member_epoch = 0

        def is_assigned() -> bool:
            answer = self._heartbeat(self.member_epoch, topics)
            assert answer.error_code is ErrorCode.none, answer
            return _assigned(answer) == partitions

        until(is_assigned, f"{partitions} assigned partitions of {topics}")

    def leave(self) -> str:
        """Leave the group."""
        return self.heartbeat(CLOSING)

    def _heartbeat(self, epoch: int, topics: Sequence[str]) -> Any:
        answers: list[Any] = []

        def is_answered() -> bool:
            answer = self._server.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                to=self._server.coordinator(self.group),
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=tuple(topics) or None,
            )
            answers.append(answer)
            return answer.error_code not in _AGAIN

        until(is_answered, f"a coordinator that serves {self.group}")
        if answers[-1].error_code is ErrorCode.none:
            self.member_epoch = answers[-1].member_epoch
        return answers[-1]

    # -- fetches

    def fetch(self, *acknowledgements: Acknowledgement, topic_id: uuid.UUID | None = None, partition: int = 0) -> str:
        """Fetch at the session's next epoch. `topic_id`: another topic than the member's."""
        asked = topic_id or self.topic_id
        shown = self.fetch_at(self.session_epoch, *acknowledgements, topic_id=asked, partition=partition)
        if not shown.startswith(REFUSED):
            self.session_epoch += 1
        return shown

    def fetch_at(
        self, epoch: int, *acknowledgements: Acknowledgement, topic_id: uuid.UUID | None, partition: int = 0
    ) -> str:
        """Fetch at this epoch of the session, which the member does not remember."""
        m = message(ApiKey.SHARE_FETCH, self.version)
        asked = m.make(
            "FetchPartition", partition_index=partition, acknowledgement_batches=_batches(m, acknowledgements)
        )
        request = m.request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait=timedelta(milliseconds=self.wait_ms),
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            max_records=self.max_records,
            batch_size=self.max_records,
            share_acquire_mode=self.acquire_mode,
            is_renew_ack=self.is_renewing,
            topics=(m.make("FetchTopic", topic_id=topic_id, partitions=(asked,)),),
            forgotten_topics_data=(),
        )
        answer = self._exchange(m, request)
        if answer.error_code is not ErrorCode.none:
            return REFUSED + _name(answer.error_code)
        self.lock_ms = answer.acquisition_lock_timeout // timedelta(milliseconds=1)
        parts = [_shown(part) for topic in answer.responses for part in topic.partitions]
        return "; ".join(part for part in parts if part) or NOTHING

    def acquire(self, *, topic_id: uuid.UUID | None = None, partition: int = 0) -> str:
        """Fetch until records are acquired or the request is refused."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            shown = self.fetch(topic_id=topic_id, partition=partition)
            if "x" in shown or shown.startswith(REFUSED) or time.monotonic() > end:
                return shown

    # -- acknowledgements

    def acknowledge(self, *acknowledgements: Acknowledgement) -> str:
        """Acknowledge at the session's next epoch."""
        shown = self.acknowledge_at(self.session_epoch, *acknowledgements, topic_id=self.topic_id)
        if not shown.startswith(REFUSED):
            self.session_epoch += 1
        return shown

    def acknowledge_at(
        self, epoch: int, *acknowledgements: Acknowledgement, topic_id: uuid.UUID | None, partition: int = 0
    ) -> str:
        """Acknowledge at this epoch of the session, which the member does not remember."""
        m = message(ApiKey.SHARE_ACKNOWLEDGE, self.version)
        batches = _batches(m, acknowledgements)
        part = m.make("AcknowledgePartition", partition_index=partition, acknowledgement_batches=batches)
        topics = (m.make("AcknowledgeTopic", topic_id=topic_id, partitions=(part,)),) if batches else ()
        request = m.request(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            is_renew_ack=self.is_renewing,
            topics=topics,
        )
        answer = self._exchange(m, request)
        if answer.error_code is not ErrorCode.none:
            return REFUSED + _name(answer.error_code)
        return " ".join(_name(part.error_code) for topic in answer.responses for part in topic.partitions) or NOTHING

    def close_session(self) -> str:
        """End the share session; what it acquired is released."""
        shown = self.acknowledge_at(CLOSING, topic_id=self.topic_id)
        self.session_epoch = 0
        return shown

    def _exchange(self, m: Any, request: Any) -> Any:
        if self._connection is None:
            self._connection = connect(self._client, self._server.addresses[0])
        return exchange(self._connection, self._client.client_id, request, m.response_type)


def _batches(m: Any, acknowledgements: Sequence[Acknowledgement]) -> tuple[Any, ...]:
    return tuple(
        m.make("AcknowledgementBatch", first_offset=each.first, last_offset=each.last, acknowledge_types=each.types)
        for each in acknowledgements
    )


def _assigned(heartbeat: Any) -> int:
    assignment = heartbeat.assignment
    return sum(len(topic.partitions) for topic in assignment.topic_partitions) if assignment else 0


def _shown(part: Any) -> str:
    words = [] if part.error_code is ErrorCode.none else [_name(part.error_code)]
    if part.acknowledge_error_code:
        words.append(f"acknowledgement {_name(part.acknowledge_error_code)}")
    words += [f"{each.first_offset}-{each.last_offset}x{each.delivery_count}" for each in part.acquired_records]
    return " ".join(words)


def _name(code: int) -> str:
    return ErrorCode(code).name.upper()
