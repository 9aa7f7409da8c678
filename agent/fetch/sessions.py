"""Incremental fetch sessions: a client sends its partitions once, later only the changes.

Place: around the Fetch handler: a request is extended to all partitions of its session, a reply is
reduced to what the client does not know yet.
Invariant: a session's record of what was sent changes only when a reply is made for it; a client that
lost a reply has the wrong epoch, gets an error and starts a new session. At most `capacity` sessions: a full
cache evicts only sessions that are idle for `EVICTABLE_SECONDS`, else the client gets no session and
sends full fetches, which is always correct.
After a restart, clients get FETCH_SESSION_ID_NOT_FOUND and send a full fetch.
Source: KIP-227; KIP-516 for sessions that name topics by id.
"""

from __future__ import annotations

import random
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.plan import TopicRef
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply, FetchRequest
from headrace.protocol.wire import NULL_UUID
from headrace.storage.clock import Clock

NO_SESSION = 0
FULL_EPOCH = 0
"""A full fetch that requests a new session."""
LAST_EPOCH = -1
"""A full fetch without a session, which closes the one in the request."""
EPOCH_MAX = 2**31 - 1
EVICTABLE_SECONDS = 120.0
CAPACITY = 1_000

Ref = tuple[TopicRef, int]
"""A partition as in the request: topic, index."""


@dataclass(slots=True)
class _Session:
    """`sent`: (high watermark, log start offset) as last sent to the client; absent if they must be sent again."""

    session_id: int
    by_id: bool
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

    def __init__(self, clock: Clock, rng: random.Random, metrics: FetchMetrics, capacity: int = CAPACITY) -> None:
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._capacity = capacity
        self._sessions: OrderedDict[int, _Session] = OrderedDict()

    def open(self, request: FetchRequest, *, by_id: bool) -> Exchange:
        """The exchange that `request` starts or continues. `by_id`: its version names topics by id."""
        if request.session_epoch in (FULL_EPOCH, LAST_EPOCH):
            self._close(request.session_id)
            wanted = _named(request)
            if request.session_epoch == LAST_EPOCH or not wanted:
                return Exchange(wanted)
            return Exchange(wanted, session=self._create(wanted, by_id))
        return self._go_on(request, by_id)

    def _go_on(self, request: FetchRequest, by_id: bool) -> Exchange:
        session = self._sessions.get(request.session_id)
        if session is None:
            return Exchange({}, error=ErrorCode.fetch_session_id_not_found)
        if session.by_id != by_id:
            return Exchange({}, error=ErrorCode.fetch_session_topic_id_error)
        if session.next_epoch != request.session_epoch:
            return Exchange({}, error=ErrorCode.invalid_fetch_session_epoch)
        for ref, partition in _named(request).items():
            session.wanted[ref] = partition
        for topic in request.forgotten:
            for index in topic.partitions:
                ref = _ref(topic.name, topic.topic_id, index)
                session.wanted.pop(ref, None)
                session.sent.pop(ref, None)
        if not session.wanted:
            self._close(session.session_id)
            return Exchange({})
        session.next_epoch = session.next_epoch % EPOCH_MAX + 1
        self._touch(session)
        return Exchange(session.wanted, session=session, incremental=True)

    def _create(self, wanted: Mapping[Ref, FetchPartition], by_id: bool) -> _Session | None:
        if len(self._sessions) >= self._capacity and not self._evict():
            return None
        session_id = self._rng.randint(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randint(1, EPOCH_MAX)
        session = _Session(session_id, by_id, wanted=dict(wanted))
        self._sessions[session_id] = session
        self._touch(session)
        self._metrics.sessions.set(len(self._sessions))
        return session

    def _evict(self) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or self._clock.monotonic() - oldest.used_at < EVICTABLE_SECONDS:
            return False
        self._close(oldest.session_id)
        return True

    def _touch(self, session: _Session) -> None:
        session.used_at = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)

    def _close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        self._metrics.sessions.set(len(self._sessions))


def _named(request: FetchRequest) -> dict[Ref, FetchPartition]:
    return {
        _ref(topic.name, topic.topic_id, partition.index): partition
        for topic in request.topics
        for partition in topic.partitions
    }


def _ref(name: str | None, topic_id: uuid.UUID | None, index: int) -> Ref:
    return (name if name is not None else topic_id or NULL_UUID, index)
