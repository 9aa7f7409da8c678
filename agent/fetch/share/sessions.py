"""Share sessions: which partitions a member of a share group asks this agent for, from request to request.

Place: before the owner is asked.
Invariant: a session belongs to the connection and the principal that opened it, and ends with the connection: to all
others, and at other agents, it does not exist. So no client acknowledges in the session of another one. A request with
another epoch than the next one changes nothing. At most group.share.max.share.sessions, which use at most
SHARE_SESSIONS_BYTES, half of each of one address: a client names any partitions, also ones that do not exist.
Source: KIP-932; Kafka's SharePartitionManager and ShareSessionCache.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.limits.client_memory import text_bytes
from headrace.config.memory_budget import SHARE_SESSIONS_BYTES
from headrace.protocol.request import ClientConnection

SESSION_BYTES = 512
"""A session besides its partitions and the ids of group and member; 356 bytes were measured."""
SESSION_PARTITION_BYTES = 320
"""A partition of a session: 218 bytes were measured, each of another topic; a dictionary that has just grown needs 80
more."""
FIRST_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

ShareRef = tuple[uuid.UUID, int]
"""Topic id, partition index."""
SessionKey = tuple[str, str]
"""Group id, member id."""


@dataclass(slots=True)
class _Session:
    principal: str | None
    ids_bytes: int
    """The memory of the ids of group and member."""
    next_epoch: int = 1
    wanted: dict[ShareRef, None] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return SESSION_BYTES + self.ids_bytes + SESSION_PARTITION_BYTES * len(self.wanted)


class ShareExchange(NamedTuple):
    """One request in its session. An `error` other than none refuses all of it."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    wanted: Sequence[ShareRef] = ()
    """What the session has: the partitions to fetch, or, when it ends, to release."""
    closes: bool = False


class ShareSessions:
    """All share sessions of this agent."""

    def __init__(
        self,
        most: Callable[[], int],
        limit_bytes: int = SHARE_SESSIONS_BYTES,
        on_limit: Callable[[str], None] = lambda limit: None,
    ) -> None:
        """`on_limit` is called with the name of a limit that refuses a request."""
        self._most, self._limit, self._on_limit = most, limit_bytes, on_limit
        self._sessions: dict[ClientConnection, dict[SessionKey, _Session]] = {}
        self._by_client: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        """By client."""
        self._partitions = self._total_bytes = 0

    def __len__(self) -> int:
        return self._by_client.total()

    def watch(self, registry: CollectorRegistry) -> None:
        """Show how many there are."""
        Gauge(
            "headrace_share_sessions", "Share sessions of this agent; Kafka's ShareSessionsCount", registry=registry
        ).set_function(lambda: len(self))
        Gauge(
            "headrace_share_session_partitions",
            "Partitions of all share sessions; Kafka's SharePartitionsCount",
            registry=registry,
        ).set_function(lambda: self._partitions)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions."""
        return self._partitions

    @property
    def in_use_bytes(self) -> int:
        """The memory of all sessions, about."""
        return self._total_bytes

    def fetch(
        self,
        connection: ClientConnection,
        key: SessionKey,
        epoch: int,
        asked: Iterable[ShareRef],
        forgotten: Iterable[ShareRef],
        *,
        acknowledges: bool,
    ) -> ShareExchange:
        """ShareFetch: epoch 0 opens a session, -1 ends it, any other one continues it."""
        if epoch == FIRST_EPOCH:
            if acknowledges:
                return ShareExchange(ErrorCode.invalid_request, "a session cannot begin with acknowledgements")
            return self._open(connection, key, asked)
        exchange = self._continue(connection, key, epoch)
        if exchange.error or exchange.closes:
            return exchange
        session = self._sessions[connection][key]
        self._count(connection, session, -1)
        session.wanted.update(dict.fromkeys(asked))
        for ref in forgotten:
            session.wanted.pop(ref, None)
        self._count(connection, session, 1)
        if len(session.wanted) > connection.request_elements_max or not self._has_room(_address(connection)):
            self._end(connection, key)
            self._on_limit("share.sessions")
            return ShareExchange(ErrorCode.share_session_limit_reached)
        return exchange._replace(wanted=tuple(session.wanted))

    def acknowledge(self, connection: ClientConnection, key: SessionKey, epoch: int) -> ShareExchange:
        """ShareAcknowledge: it opens no session."""
        if epoch == FIRST_EPOCH:
            return ShareExchange(ErrorCode.invalid_share_session_epoch)
        return self._continue(connection, key, epoch)

    def _continue(self, connection: ClientConnection, key: SessionKey, epoch: int) -> ShareExchange:
        session = self._sessions.get(connection, {}).get(key)
        if session is None or session.principal != connection.principal:
            return ShareExchange(ErrorCode.share_session_not_found)
        if epoch == FINAL_EPOCH:
            self._end(connection, key)
            return ShareExchange(wanted=tuple(session.wanted), closes=True)
        if epoch != session.next_epoch:
            return ShareExchange(ErrorCode.invalid_share_session_epoch)
        session.next_epoch = epoch % EPOCH_MAX + 1
        return ShareExchange(wanted=tuple(session.wanted))

    def _open(self, connection: ClientConnection, key: SessionKey, asked: Iterable[ShareRef]) -> ShareExchange:
        self._end(connection, key)
        client, most = _address(connection), self._most()
        session = _Session(connection.principal, text_bytes(*key), wanted=dict.fromkeys(asked))
        if len(self) >= most or 2 * self._by_client[client] >= max(most, 2):
            self._on_limit("group.share.max.share.sessions")
            return ShareExchange(ErrorCode.share_session_limit_reached)
        if not self._has_room(client, session.size_bytes):
            self._on_limit("share.sessions")
            return ShareExchange(ErrorCode.share_session_limit_reached)
        if connection.closed:
            return ShareExchange(ErrorCode.share_session_not_found)
        mine = self._sessions.get(connection)
        if mine is None:
            mine = self._sessions[connection] = {}
            connection.call_when_closed(partial(self._forget, connection))
        mine[key] = session
        self._by_client[client] += 1
        self._count(connection, session, 1)
        return ShareExchange(wanted=tuple(session.wanted))

    def _forget(self, connection: ClientConnection) -> None:
        for key in list(self._sessions.get(connection, ())):
            self._end(connection, key)
        self._sessions.pop(connection, None)

    def _end(self, connection: ClientConnection, key: SessionKey) -> None:
        session = self._sessions.get(connection, {}).pop(key, None)
        if session is not None:
            client = _address(connection)
            self._count(connection, session, -1)
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client], self._bytes[client]

    def _count(self, connection: ClientConnection, session: _Session, times: int) -> None:
        """Add the session to what is in use; -1 times: take it away."""
        self._partitions += times * len(session.wanted)
        self._bytes[_address(connection)] += times * session.size_bytes
        self._total_bytes += times * session.size_bytes

    def _has_room(self, client: str, more: int = 0) -> bool:
        return self._total_bytes + more <= self._limit and 2 * (self._bytes[client] + more) <= self._limit


def _address(connection: ClientConnection) -> str:
    return connection.peer.rpartition(":")[0]
