"""The members of a streams group: what each says and has; who may get a task. Pure.

Place: subclasses of ../members/reconciliation.py, with keys of tasks (topology.py) in place of partitions, kept by
StreamsRoster. A member is a thread of an application; threads of one process name the same process id.
Invariant: no active task has two holders: the roster refuses one. No process has a task twice, in
any roles.
Source: KIP-1071, Kafka's StreamsGroupMember and StreamsGroup.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.agent.groups.members.membership import MemberRoster
from headrace.agent.groups.members.reconciliation import OwnerHeartbeat, OwnerMember
from headrace.agent.groups.streams.topology import Topology, is_standby, other_role, task_of
from headrace.agent.limits.client_memory import ENTRY_BYTES, text_bytes


class QueryEndpoint(NamedTuple):
    """The address at which a process answers interactive queries."""

    host: str
    port: int


ClientTags = tuple[tuple[str, str], ...]
"""Pairs of key and value, sorted."""


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat(OwnerHeartbeat):
    """StreamsGroupHeartbeat; None: not sent, so nothing changed. `topic_names`: the source topics of `topology`."""

    topology: Topology | None = None
    tasks: tuple[Iterable[Any], Iterable[Any]] | None = None
    """What it says it owns, active and standby, as TaskIds; group.py makes `owned` of it."""
    process_id: str | None = None
    endpoint: QueryEndpoint | None = None
    client_tags: ClientTags | None = None
    endpoint_epoch: int = 0
    """The epoch of the endpoints that it knows."""
    shuts_down: bool = False
    """The whole application is to stop."""

    @property
    def is_full(self) -> bool:
        """A member gets its whole assignment when it joins, and when that changed."""
        return False


@dataclass(frozen=True, slots=True)
class StreamsMember(OwnerMember[StreamsHeartbeat]):
    """`topology_epoch`: of the topology that it joined with."""

    topology_epoch: int = -1
    process_id: str = ""
    endpoint: QueryEndpoint | None = None
    client_tags: ClientTags = ()

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return OwnerMember.size_bytes(self) + own_bytes(self.process_id, self.endpoint, self.client_tags)

    def _said_by(self, request: StreamsHeartbeat) -> dict[str, Any]:
        """The topics are the group's, not the member's."""
        said = OwnerMember._said_by(self, request) | {
            "topology_epoch": None if request.topology is None else request.topology.epoch,
            "process_id": request.process_id,
            "endpoint": request.endpoint,
            "client_tags": request.client_tags,
        }
        return {name: value for name, value in said.items() if name != "topic_names"}


def own_bytes(process_id: str | None, endpoint: QueryEndpoint | None, client_tags: ClientTags) -> int:
    """Return the size of what only members of streams groups have."""
    tags = sum(ENTRY_BYTES + text_bytes(*pair) for pair in client_tags)
    return tags + text_bytes(process_id, None if endpoint is None else endpoint.host)


class StreamsRoster(MemberRoster[StreamsMember]):
    """Members by id, in the order they joined; and which tasks they may be running."""

    def __init__(self) -> None:
        super().__init__()
        self._active: dict[int, str] = {}
        """Key of an active task -> member id."""
        self._standby: defaultdict[int, Counter[str]] = defaultdict(Counter)
        """Key of a standby task -> the processes that have it."""

    def is_taken(self, key: int, process_id: str) -> bool:
        """Return whether the task is not free for a member of this process. What the process itself is giving up is
        not free, either.
        """
        if is_standby(key):
            return self._process_of(other_role(key)) == process_id or self._has_standby(key, process_id)
        return key in self._active or self._has_standby(other_role(key), process_id)

    def _process_of(self, active_key: int) -> str | None:
        member = self.get(self._active.get(active_key, ""))
        return None if member is None else member.process_id

    def _has_standby(self, key: int, process_id: str) -> bool:
        return key in self._standby and process_id in self._standby[key]

    def _note(self, member: StreamsMember) -> None:
        super()._note(member)
        for key in member.holds:
            if is_standby(key):
                self._standby[key][member.process_id] += 1
                continue
            holder = self._active.setdefault(key, member.member_id)
            assert holder == member.member_id, f"task {task_of(key)} is held by {holder} and {member.member_id}"

    def _forget(self, member: StreamsMember) -> None:
        super()._forget(member)
        for key in member.holds:
            if not is_standby(key):
                del self._active[key]
                continue
            processes = self._standby[key]
            processes[member.process_id] -= 1
            processes += Counter()  # leaves out those without any
            if not processes:
                del self._standby[key]
