"""The plain values that a group's state machine takes or gives: no clock, no sockets.

Place: between the handlers, which know versions and fields, and the groups, which know the rules. The handlers of
group requests ask about names of groups, and of their members' clients, before anything else.
A token represents a request that waits for its answer; the state machine hands it back untouched.
Refusals are values: Kafka's codes, one to one. Times are seconds of the clock's monotonic().
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_texts import storable
from headrace.metastore.api.groups import GroupRecord
from headrace.protocol.request import ClientConnection


def is_legal_group_id(group_id: str) -> bool:
    """Members' groups have a name; a consumer that assigns itself may commit without one."""
    return bool(group_id) and storable(group_id)


def client_host(client: ClientConnection) -> str:
    """The address of a client, as Kafka writes it in the description of a group."""
    return "/" + client.peer.rpartition(":")[0]


NO_GENERATION = -1
CONSUMER = "consumer"
"""Kafka's protocol type of groups of consumers; Connect's workers have another one."""
Token = Hashable


class GroupState(enum.Enum):
    """Kafka's names, as its admin tools show them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again; those that did wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have the new generation; they wait for the leader's assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """This agent does not coordinate the group any more."""


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with the member's own opaque bytes for it."""

    name: str
    metadata: bytes


class MemberRef(NamedTuple):
    """How a member names itself; `instance_id` for static members (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`id_required`: the client joins again with the member id that it is given (KIP-394).

    `can_skip_assignment`: JoinGroup v9.
    """

    member: MemberRef
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    id_required: bool = True
    can_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    """What the leader gets to know of each member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`members` is for the leader only. With `skip_assignment` the leader keeps the assignment as it is."""

    code: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """`assignments` (member id -> opaque bytes) are the leader's. A protocol field of None was not sent: unchecked."""

    member: MemberRef
    assignments: dict[str, bytes]
    protocol_type: str | None = None
    protocol_name: str | None = None
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    code: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class Reply(NamedTuple):
    """The request behind `token` gets this answer now."""

    token: Token
    answer: object
    """A JoinAnswer, a SyncAnswer, or what members/ answers a heartbeat with."""


class SavedState(Protocol):
    """What a Save carries: a group of any kind, as its kind encodes it."""

    def record(self) -> GroupRecord: ...


class Save(NamedTuple):
    """Store `state`, in the order of `revision`, then call `saved` of the group: answers may wait for it."""

    revision: int
    state: SavedState


class Abandon(NamedTuple):
    """What was done could not be stored: let the group go, so that it is restored from what was."""


class Become(NamedTuple):
    """The group continues as a group of another kind, restored from `record`."""

    record: GroupRecord


GroupEffect = Reply | Save | Abandon | Become


class DescribedMember(NamedTuple):
    """What admin tools get to know of a member; `metadata` and `assignment` in a stable group only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """A classic group, with Kafka's names; `protocol_name` in a stable group only."""

    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


class Departure(NamedTuple):
    """One member's answer to a LeaveGroup."""

    member: MemberRef
    code: ErrorCode
