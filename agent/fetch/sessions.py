"""The partitions that a Fetch asks for: those of its incremental session that its client may read.

Place: around the Fetch handler: a request is extended to all partitions of its session, a reply is reduced to what
the client does not know yet. A client sends its partitions once, later only the changes. AllowedTopics is asked
before the read path, and again before a reply that had to wait.
Invariant: a session's record of what was sent changes only when a reply is made for it; a client that
lost a reply has the wrong epoch, gets an error and starts a new session. A session belongs to the connection and the
principal that opened it, and ends with the connection: to all others its id does not exist, so that no client
reads or ends the session of another one. At most `capacity` sessions with
`partitions_max` partitions in total, and at most half of each of one client: a full cache evicts only sessions that
are idle for `EVICTABLE_SECONDS`, else the client gets no session and sends full fetches, which is always correct.
After a reconnect, or a restart of the agent, clients that continue their session get FETCH_SESSION_ID_NOT_FOUND and
send a full fetch: one round trip. Kafka keeps a session over a reconnect, and does not check its owner. No record of
a topic is sent to a client that may not read it by the ACLs of the image at the time of the reply. Topics without a
name at that time are unknown to all clients, so none of their records are sent either.
Source: KIP-227; KIP-516 for sessions that name topics by id; Kafka's KafkaApis.handleFetchRequest; the metadata log
needs CLUSTER_ACTION, as in ControllerApis.handleFetch.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.cluster.partition_names import TopicRef, unknown_topic
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply, FetchRequest
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.wire import NULL_UUID
from headrace.storage.clock import Clock

NO_SESSION = 0
FULL_EPOCH = 0
"""A full fetch that requests a new session."""
LAST_EPOCH = -1
"""A full fetch without a session, which closes the one in the request."""
EPOCH_MAX = 2**31 - 1
SESSION_ID_MAX = 2**31 - 1
EVICTABLE_SECONDS = 120.0
CAPACITY = 2_000
PARTITIONS_MAX = 200_000
NAME_BYTES = 256
"""Memory of a topic name from which on it counts as another partition."""

Ref = tuple[TopicRef, int]
"""A partition as in the request: topic, index."""


@dataclass(slots=True)
class _Session:
    """`sent`: (high watermark, log start offset) as last sent to the client; absent if they must be sent again."""

    session_id: int
    by_id: bool
    owner: ClientConnection
    principal: str | None
    client: str
    """The address of the owner, by which sessions are counted."""
    weight: int = 0
    """What it counts for, in partitions; one with a long name counts as several."""
    next_epoch: int = 1
    used_at: float = 0.0
    wanted: dict[Ref, FetchPartition] = field(default_factory=dict)
    sent: dict[Ref, tuple[int, int]] = field(default_factory=dict)


class Exchange:
    """One request in its session, or without one. An `error` other than none refuses the whole request."""

    def __init__(
        self,
        wanted: Mapping[Ref, FetchPartition],
        *,
        session: _Session | None = None,
        incremental: bool = False,
        error: ErrorCode = ErrorCode.none,
    ) -> None:
        self.wanted = dict(wanted)
        """Every partition to serve, in the client's order."""
        self.error = error
        self._session = session
        self._incremental = incremental

    @property
    def session_id(self) -> int:
        """The session id in the reply; 0 for none."""
        return self._session.session_id if self._session else NO_SESSION

    def narrow(self, replies: Iterable[tuple[Ref, FetchPartitionReply]]) -> list[tuple[Ref, FetchPartitionReply]]:
        """The replies that the client must get; they are remembered as sent."""
        session = self._session
        if session is None:
            return list(replies)
        chosen = []
        for ref, reply in replies:
            news = (reply.high_watermark, reply.log_start_offset)
            says_nothing = not reply.error_code and not reply.records and reply.preferred_read_replica < 0
            if self._incremental and says_nothing and session.sent.get(ref) == news:
                continue
            chosen.append((ref, reply))
            if reply.error_code:
                session.sent.pop(ref, None)
            elif ref in session.wanted:
                session.sent[ref] = news
        return chosen


class FetchSessions:
    """All sessions of this agent, least recently used first."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        metrics: FetchMetrics,
        capacity: int = CAPACITY,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._capacity = capacity
        self._partitions_max = partitions_max
        self._partitions: Counter[str] = Counter()
        """In sessions, by client."""
        self._count: Counter[str] = Counter()
        """Sessions, by client."""
        self._total_partitions = 0
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._owned: dict[ClientConnection, set[int]] = {}
        """Session ids by open connection."""

    @property
    def partitions(self) -> int:
        """Partitions of all sessions; one with a long name counts as several."""
        return self._total_partitions

    def open(
        self,
        request: FetchRequest,
        connection: ClientConnection,
        *,
        by_id: bool,
        session_max: int = PARTITIONS_MAX,
    ) -> Exchange:
        """The exchange that `request` starts or continues. `by_id`: its version names topics by id.

        `session_max` partitions may be in one session: each of its requests is a request for all of them.
        """
        if request.session_epoch in (FULL_EPOCH, LAST_EPOCH):
            if self._find(request.session_id, connection) is not None:
                self._close(request.session_id)
            wanted = _named(request)
            if request.session_epoch == LAST_EPOCH or not wanted or connection.closed:
                return Exchange(wanted)
            return Exchange(wanted, session=self._create(wanted, by_id, connection))
        return self._go_on(request, connection, by_id, session_max)

    def _find(self, session_id: int, connection: ClientConnection) -> _Session | None:
        """The session if it belongs to this connection and its principal."""
        session = self._sessions.get(session_id)
        if session is None or session.owner is not connection or session.principal != connection.principal:
            return None
        return session

    def _go_on(self, request: FetchRequest, connection: ClientConnection, by_id: bool, session_max: int) -> Exchange:
        session = self._find(request.session_id, connection)
        if session is None:
            return Exchange({}, error=ErrorCode.fetch_session_id_not_found)
        if session.by_id != by_id:
            return Exchange({}, error=ErrorCode.fetch_session_topic_id_error)
        if session.next_epoch != request.session_epoch:
            return Exchange({}, error=ErrorCode.invalid_fetch_session_epoch)
        named = _named(request)
        weight = sum(_weight(ref) for ref in named if ref not in session.wanted)
        session.wanted.update(named)
        for topic in request.forgotten:
            for index in topic.partitions:
                ref = _ref(topic.name, topic.topic_id, index)
                weight -= _weight(ref) if session.wanted.pop(ref, None) is not None else 0
                session.sent.pop(ref, None)
        session.weight += weight
        self._add_partitions(session.client, weight)
        if not session.wanted:
            self._close(session.session_id)
            return Exchange({})
        if len(session.wanted) > session_max or not self._has_room(session.client):
            self._close(session.session_id)
            self._metrics.limits_reached.labels("fetch.session.max.partitions").inc()
            return Exchange({}, error=ErrorCode.fetch_session_id_not_found)
        session.next_epoch = session.next_epoch % EPOCH_MAX + 1
        self._touch(session)
        return Exchange(session.wanted, session=session, incremental=True)

    def _create(
        self, wanted: Mapping[Ref, FetchPartition], by_id: bool, connection: ClientConnection
    ) -> _Session | None:
        client = connection.peer.rpartition(":")[0]
        weight = sum(map(_weight, wanted))
        if not self._make_room(client, weight):
            self._metrics.limits_reached.labels("fetch.session.max.partitions").inc()
            return None
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = _Session(session_id, by_id, connection, connection.principal, client, weight, wanted=dict(wanted))
        self._sessions[session_id] = session
        if connection not in self._owned:
            self._owned[connection] = set()
            connection.call_when_closed(partial(self._end_sessions_of, connection))
        self._owned[connection].add(session_id)
        self._count[client] += 1
        self._add_partitions(client, weight)
        self._touch(session)
        self._metrics.sessions.set(len(self._sessions))
        return session

    def _new_id(self) -> int:
        return self._rng.randint(1, SESSION_ID_MAX)

    def _end_sessions_of(self, connection: ClientConnection) -> None:
        for session_id in self._owned.pop(connection, set()):
            self._close(session_id)

    def _add_partitions(self, client: str, more: int) -> None:
        self._partitions[client] += more
        self._total_partitions += more

    def _make_room(self, client: str, partitions: int) -> bool:
        """Make room for a session of the client. Its own idle sessions make room for its half, those of all for
        the total.
        """
        while not self._has_room_of_its_own(client, partitions, 1):
            if not self._evict(client):
                return False
        while len(self._sessions) >= self._capacity or self._total_partitions + partitions > self._partitions_max:
            if not self._evict():
                return False
        return True

    def _has_room(self, client: str) -> bool:
        return self._total_partitions <= self._partitions_max and self._has_room_of_its_own(client, 0, 0)

    def _has_room_of_its_own(self, client: str, partitions: int, sessions: int) -> bool:
        own, count = self._partitions[client] + partitions, self._count[client] + sessions
        return 2 * own <= self._partitions_max and 2 * count <= self._capacity

    def _evict(self, client: str | None = None) -> bool:
        """End the session, of the client or of any, that was used least recently, if it is idle."""
        sessions = (session for session in self._sessions.values() if client in (None, session.client))
        oldest = next(sessions, None)
        if oldest is None or self._clock.monotonic() - oldest.used_at < EVICTABLE_SECONDS:
            return False
        self._close(oldest.session_id)
        return True

    def _touch(self, session: _Session) -> None:
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._owned.get(session.owner, set()).discard(session_id)
            self._add_partitions(session.client, -session.weight)
            self._count[session.client] -= 1
            if not self._count[session.client]:
                del self._count[session.client], self._partitions[session.client]
        self._metrics.sessions.set(len(self._sessions))


def _weight(ref: Ref) -> int:
    """Return how many partitions of the limit it uses: a client may name topics that do not exist, by names of any
    length.
    """
    topic, _ = ref
    return 1 + (text_bytes(topic) // NAME_BYTES if isinstance(topic, str) else 0)


def _named(request: FetchRequest) -> dict[Ref, FetchPartition]:
    return {
        _ref(topic.name, topic.topic_id, partition.index): partition
        for topic in request.topics
        for partition in topic.partitions
    }


def _ref(name: str | None, topic_id: uuid.UUID | None, index: int) -> Ref:
    return (name if name is not None else topic_id or NULL_UUID, index)


T = TypeVar("T")
_READ_TOPIC = (AclOperation.READ, AclResource.TOPIC)
_READ_METADATA = (AclOperation.CLUSTER_ACTION, AclResource.CLUSTER)


class AllowedTopics:
    """The topics that clients may read, for the fetches of one agent."""

    def __init__(self, authorizer: Authorizer, view: ClusterView) -> None:
        self._authorizer, self._view = authorizer, view

    def access(self, request: Request) -> Access:
        """Return what the client may do now; another object if that may have changed."""
        return self._authorizer.access(request.connection)

    def split(
        self, request: Request, wanted: Mapping[Ref, T]
    ) -> tuple[Mapping[Ref, T], list[tuple[Ref, FetchPartitionReply]]]:
        """(what may be read, the replies for the rest). Ids that are unknown so far are in the first part."""
        codes = self.codes(request, (topic for topic, _ in wanted))
        bad = {topic: code for topic, code in codes.items() if code == ErrorCode.topic_authorization_failed}
        if not bad:
            return wanted, []
        allowed = {ref: partition for ref, partition in wanted.items() if ref[0] not in bad}
        return allowed, [(ref, FetchPartitionReply(ref[1], bad[ref[0]])) for ref in wanted if ref[0] in bad]

    def checked(
        self, request: Request, replies: list[tuple[Ref, FetchPartitionReply]]
    ) -> list[tuple[Ref, FetchPartitionReply]]:
        """The replies, those with records only for topics that may be read by now."""
        codes = self.codes(request, (topic for (topic, _), reply in replies if not reply.error_code))
        return [
            (ref, FetchPartitionReply(ref[1], code) if (code := codes.get(ref[0], ErrorCode.none)) else reply)
            for ref, reply in replies
        ]

    def codes(self, request: Request, topics: Iterable[TopicRef]) -> dict[TopicRef, int]:
        """Return the code of each topic, unless the client may do everything; a denial is reported."""
        access = self.access(request)
        if access.is_full:
            return {}
        codes: dict[TopicRef, int] = {}
        for topic in topics:
            if topic not in codes:
                codes[topic] = self._code(request, access, topic)
        return codes

    def _code(self, request: Request, access: Access, topic: TopicRef) -> int:
        name = self._name(topic)
        if name is None:
            return unknown_topic(topic)
        is_log = name == METADATA_TOPIC
        operation, resource_type = _READ_METADATA if is_log else _READ_TOPIC
        resource = CLUSTER_NAME if is_log else name
        if access.allows(operation, resource_type, resource):
            return ErrorCode.none
        self._authorizer.denied(request, operation, resource_type, resource)
        return ErrorCode.topic_authorization_failed

    def _name(self, topic: TopicRef) -> str | None:
        if isinstance(topic, str):
            return topic
        found = rendered_topic(topic) or self._view.image.topics_by_id.get(topic)
        return None if found is None else found.name
