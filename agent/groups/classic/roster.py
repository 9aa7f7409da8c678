"""The members of a group: who is in, who leads, which protocol they agree on, who is to come. Pure.

Place: under group.py, which decides when any of this changes, and rebalance.py, which also waits for the members of
promised ids: those that were handed out and that no member has joined with yet.
Invariant: the leader is a member while there are members; an instance id belongs to one member. A promised id is
used once, or lapses.
Source: KIP-345 (static members), KIP-394 (member ids first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.saved import SavedClassicMember
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import JoinedMember, JoinRequest, MemberProtocol, MemberRef, Token
from headrace.agent.limits.client_memory import text_bytes

PROMISE_SECONDS = 10.0
"""Longest validity of a promised id, in seconds. Clients join with an id at once, but an answer may be lost with
the agent that forwarded it, and the group waits for it. Kafka waits for one session timeout. A client that comes
later asks for another id.
"""


class PromisedIds:
    """Ids with the time at which each lapses, and the address that asked for it."""

    def __init__(self) -> None:
        self._promised: dict[str, tuple[float, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._promised)

    def addresses(self) -> Iterable[tuple[str, str]]:
        """Each address that asked, and the id that it got."""
        return ((address, member_id) for member_id, (_, address) in self._promised.items())

    def promise(self, member_id: str, lapse_at: float, address: str) -> None:
        """The id is for one new member, until then."""
        self._promised[member_id] = lapse_at, address

    def take(self, member_id: str) -> bool:
        """Return whether it was promised; it is not any more."""
        return self._promised.pop(member_id, None) is not None

    def lapsed(self, now: float) -> list[str]:
        """The ids that have lapsed."""
        return [member_id for member_id, (at, _) in self._promised.items() if now >= at]

    def next_deadline(self) -> float | None:
        """Return when the next one lapses."""
        return min((at for at, _ in self._promised.values()), default=None)


_PROTOCOL_BYTES = 128
"""What a protocol uses besides its name and subscription, about."""


def protocols_bytes(protocols: Iterable[MemberProtocol]) -> int:
    """Return the size of a member's names of protocols and its subscriptions."""
    return sum(_PROTOCOL_BYTES + text_bytes(protocol.name) + len(protocol.metadata) for protocol in protocols)


@dataclass(slots=True)
class ClassicMember:
    """One member, with the requests of it that wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[MemberProtocol, ...]
    expires_at: float
    assignment: bytes = b""
    is_new: bool = False
    """It does not know its member id before its first join is answered, so it cannot heartbeat."""
    join_token: Token | None = None
    sync_token: Token | None = None
    incarnation_save: int | None = None
    """A restarted static member's: the save under way by which the next coordinator would know it."""

    def update(self, request: JoinRequest) -> None:
        """Apply what a member may change by joining again."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout, self.rebalance_timeout = request.session_timeout, request.rebalance_timeout
        self.protocols = request.protocols

    def touch(self, now: float) -> None:
        """The member sent a request: its session starts again."""
        self.expires_at = now + self.session_timeout

    def can_expire(self) -> bool:
        """A member that waits for others does not heartbeat; a new member waits for a limited time."""
        return self.is_new or (self.join_token is None and self.sync_token is None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its opaque bytes for the protocol."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.member_id, self.instance_id, self.client_id)
        return MEMBER_BYTES + texts + protocols_bytes(self.protocols) + len(self.assignment)

    def saved(self) -> SavedClassicMember:
        """Return it in its stored form."""
        return SavedClassicMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout,
            self.rebalance_timeout,
            [(protocol.name, protocol.metadata) for protocol in self.protocols],
            self.assignment,
        )


class ClassicRoster:
    """Members by id, in the order they joined."""

    def __init__(self) -> None:
        self.leader_id: str | None = None
        self._members: dict[str, ClassicMember] = {}
        self._static_ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def add(self, member: ClassicMember) -> None:
        """The first one leads."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """Remove a member. If it led, the member that joined first leads now."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """A static member came back under a new member id, in its old place."""
        renamed = {m.member_id if m is not member else member_id: m for m in self}
        if self.leader_id == member.member_id:
            self.leader_id = member_id
        member.member_id = member_id
        self._members = renamed
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member_id

    def static_member(self, instance_id: str | None) -> ClassicMember | None:
        """The member that holds the instance id."""
        member_id = self._static_ids.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self._members[member_id]

    def get(self, member_id: str) -> ClassicMember | None:
        """The member of that id."""
        return self._members.get(member_id)

    def find(self, ref: MemberRef) -> ClassicMember | ErrorCode:
        """The member, or why it is refused."""
        if ref.instance_id is not None:
            current = self.static_member(ref.instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current.member_id != ref.member_id:
                return ErrorCode.fenced_instance_id
        return self._members.get(ref.member_id, ErrorCode.unknown_member_id)

    def elect(self) -> bool:
        """Make sure that the leader is a member that joined; False if none did."""
        joined = [member.member_id for member in self if member.join_token is not None]
        if self.leader_id not in joined:
            if not joined:
                return False
            self.leader_id = joined[0]
        return True

    def all_joined(self) -> bool:
        return all(member.join_token is not None for member in self)

    def rebalance_timeout(self) -> float:
        """The longest that any member asks for."""
        return max((member.rebalance_timeout for member in self), default=0.0)

    def agrees(self, protocols: Iterable[MemberProtocol], *, besides: str) -> bool:
        """Return whether one of the protocols is supported by every member (but the one with id `besides`)."""
        others = [{p.name for p in member.protocols} for member in self if member.member_id != besides]
        return any(all(protocol.name in names for names in others) for protocol in protocols)

    def choose_protocol(self) -> str:
        """Choose, of the protocols that all support, the one that most members like best; of equals,
        the first asked for.
        """
        supported = Counter(name for member in self for name in {p.name for p in member.protocols})
        shared = {name for name, count in supported.items() if count == len(self)}
        votes = Counter(next(p.name for p in member.protocols if p.name in shared) for member in self)
        return votes.most_common(1)[0][0]

    def introduce(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return what the leader needs to know of each member."""
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(protocol_name)) for m in self)
