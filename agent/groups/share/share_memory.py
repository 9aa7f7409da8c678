"""Limits what an agent remembers of the records of its share groups: ranges in flight, members' connections.

Place: under owner.py, which measures a group's ranges after each turn. MemberConnections remembers by which
connection each member asked for a partition last: what a member acquired by a connection is free when that ends, or
its session.
Invariant: one address has room only while it uses less than half of the limit, and any only while all use less than
it. Without room a group still acquires and acknowledges, but so that its partitions get no more ranges than a few: a
range that is there is worked off, so no client keeps another's members from their records, and no acknowledgement
that makes ranges fewer is refused. The ranges of a group are its first member's; one turn may exceed the limit by
what it asks. A member has one connection for a partition, the last one. Each counts for the address of the client,
with its ids, until the connection or the session ends: a client chooses ids, and may ask for any partitions, also
without being a member. Without room nothing is noted, and nothing may be acquired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from headrace.agent.groups.group_values import client_host
from headrace.agent.limits.client_memory import text_bytes
from headrace.config.memory_budget import SHARE_RECORDS_BYTES
from headrace.protocol.request import ClientConnection

IN_FLIGHT_BYTES = 176
"""A range of records in flight, about, and its part of the state that is stored."""


class ShareMemory:
    """Bytes by client address. For one event loop."""

    def __init__(
        self, limit_bytes: int = SHARE_RECORDS_BYTES, on_limit: Callable[[str], None] = lambda limit: None
    ) -> None:
        """`on_limit` is called with the limit's name each time there is no room."""
        self._limit, self._on_limit = limit_bytes, on_limit
        self._by_address: Counter[str] = Counter()
        self._groups: dict[str, tuple[str, int]] = {}
        """Group id -> the address that it counts for, and its bytes."""
        self.in_use_bytes = 0

    def has_room(self, address: str, more: int = 0) -> bool:
        """Return whether a client of the address may use so many bytes more; it is counted if not."""
        own = self._by_address[address] + more
        has_room = self.in_use_bytes + more <= self._limit and 2 * own <= self._limit
        if not has_room:
            self._on_limit("share.records")
        return has_room

    def add(self, address: str, more: int) -> None:
        """Count what a client of the address uses; below 0: uses no more."""
        self.in_use_bytes += more
        self._by_address[address] += more
        if not self._by_address[address]:
            del self._by_address[address]

    def measured(self, group_id: str, address: str, ranges: int) -> None:
        """Count the ranges of a group instead of those that it had; 0 if it was released."""
        self.add(*_negative(self._groups.pop(group_id, (address, 0))))
        if ranges:
            self._groups[group_id] = address, IN_FLIGHT_BYTES * ranges
            self.add(*self._groups[group_id])


def _negative(counted: tuple[str, int]) -> tuple[str, int]:
    return counted[0], -counted[1]


MEMBER_BYTES = 1024
"""A member of a connection besides its ids and partitions, about."""
REF_BYTES = 320
"""A partition of one: 190 bytes were measured, and dictionary and set grow."""
Ref = tuple[str, str, int]
"""Group id, member id, partition key."""


class _Member(NamedTuple):
    """`keys`: the partitions for which this connection is the last one."""

    group_id: str
    member_id: str
    keys: set[int]

    @property
    def own_bytes(self) -> int:
        return MEMBER_BYTES + text_bytes(self.group_id, self.member_id)


class Noted(NamedTuple):
    """`member_id`: the one text of it that is kept. `keys`: the partitions that were noted."""

    member_id: str
    keys: list[int]


class MemberConnections:
    """Those of all share groups that an agent holds."""

    def __init__(self, memory: ShareMemory, on_gone: Callable[[list[Ref]], None]) -> None:
        """`on_gone` is called with what was a connection's when it ended."""
        self._memory, self._on_gone = memory, on_gone
        self._connections: dict[Ref, ClientConnection] = {}
        self._clients: dict[ClientConnection, dict[tuple[str, str], _Member]] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def get(self, ref: Ref) -> ClientConnection | None:
        """Return the connection; None if there is none."""
        return self._connections.get(ref)

    def note(self, client: ClientConnection, group_id: str, member_id: str, keys: Iterable[int]) -> Noted:
        """Note that the member asks for partitions by this connection."""
        if client.closed:
            return Noted(member_id, [])
        members = self._clients.get(client)
        if members is None:
            members = self._clients[client] = {}
            client.call_when_closed(partial(self._end, client))
        member, address = members.get((group_id, member_id)), client_host(client)
        if member is None:
            member = _Member(group_id, member_id, set())
            if not self._memory.has_room(address, member.own_bytes):
                return Noted(member_id, [])
            members[group_id, member_id] = member
            self._memory.add(address, member.own_bytes)
        noted = []
        for key in keys:
            if key not in member.keys:
                if not self._memory.has_room(address, REF_BYTES):
                    break
                self._move((member.group_id, member.member_id, key), client)
                member.keys.add(key)
                self._memory.add(address, REF_BYTES)
            noted.append(key)
        return Noted(member.member_id, noted)

    def end_session(self, client: ClientConnection, group_id: str, member_id: str) -> list[Ref]:
        """Forget the member at this connection, and return what it was the last one for."""
        member = self._clients.get(client, {}).pop((group_id, member_id), None)
        return [] if member is None else self._forget(client, member)

    def _end(self, client: ClientConnection) -> None:
        members = self._clients.pop(client, {})
        self._on_gone([ref for member in members.values() for ref in self._forget(client, member)])

    def _forget(self, client: ClientConnection, member: _Member) -> list[Ref]:
        refs = [(member.group_id, member.member_id, key) for key in sorted(member.keys)]
        for ref in refs:
            del self._connections[ref]
        self._memory.add(client_host(client), -member.own_bytes - REF_BYTES * len(refs))
        return refs

    def _move(self, ref: Ref, client: ClientConnection) -> None:
        """It is another connection's no more."""
        before = self._connections.pop(ref, None)
        if before is not None:
            self._clients[before][ref[:2]].keys.remove(ref[2])
            self._memory.add(client_host(before), -REF_BYTES)
        self._connections[ref] = client
