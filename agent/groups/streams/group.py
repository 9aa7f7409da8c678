"""A streams group (KIP-1071): the threads of an application of Kafka Streams, and the tasks that each runs. Pure.

Place: a MemberGroup (../members/member_group.py), with what only this kind has; membership.py makes the target.
Invariant: a heartbeat that is refused changes nothing: the topology is judged before. Every answer names what is wrong
with the topics, as long as it is. Offsets are taken from a member for tasks that it has had since the epoch it shows.
Source: KIP-1071, Kafka's GroupMetadataManager and StreamsGroup: messages are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.coordinated import FIRST_COMMIT_WITH_MEMBER_EPOCH
from headrace.agent.groups.group_values import GroupEffect, MemberRef
from headrace.agent.groups.members.member import MemberHeartbeatAnswer, Partitions
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.agent.groups.streams.configured_topology import (
    ConfiguredSubtopology,
    ConfiguredTopology,
    InvalidTopologyError,
    Status,
    StatusCode,
)
from headrace.agent.groups.streams.members import QueryEndpoint, StreamsHeartbeat, StreamsMember, StreamsRoster
from headrace.agent.groups.streams.membership import FIRST_EPOCH, PROTOCOL_TYPE, StreamsGroupMembership
from headrace.agent.groups.streams.rules import StreamsGroupConfigs
from headrace.agent.groups.streams.topology import InternalTopic, Topology, owned_tasks, task_key, task_of
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.shown_counts import undeleted_count

PartitionsByName = dict[str, list[int]]
"""Topic name -> partition indexes."""


class EndpointPartitions(NamedTuple):
    """The partitions that a process answers queries about."""

    endpoint: QueryEndpoint
    active: PartitionsByName
    standby: PartitionsByName


@dataclass(frozen=True, slots=True)
class StreamsAnswer(MemberHeartbeatAnswer):
    """`topology`: of the group, for the names of tasks. `endpoints` None: as in the last answer."""

    topology: Topology | None = None
    statuses: tuple[Status, ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    missing: tuple[InternalTopic, ...] = ()
    """The internal topics to be created."""


class StreamsGroup(MemberGroup[StreamsMember, StreamsHeartbeat]):
    """Members, their tasks, and what they may commit."""

    kind = GroupKind.STREAMS
    protocol_type: str | None = PROTOCOL_TYPE
    _membership: StreamsGroupMembership

    def __init__(
        self,
        group_id: str,
        size_max: Callable[[], int],
        configs: Callable[[], StreamsGroupConfigs],
        image: Callable[[], MetadataImage],
        on_rebalance: Callable[[], None] = lambda: None,
    ) -> None:
        """`configs` are the group's own, as configured now; `image`: the newest one. `on_rebalance` is called with each
        new group epoch.
        """
        super().__init__(group_id, StreamsGroupMembership(size_max, configs, image, on_rebalance))
        self._image, self._size_max = image, size_max
        self._said_endpoints: dict[str, tuple[StreamsMember, ConfiguredTopology | None, EndpointPartitions]] = {}
        self._is_new = False
        """Whether the heartbeat in progress is the group's first."""

    @property
    def roster(self) -> StreamsRoster:
        return self._membership.roster

    @property
    def topology(self) -> Topology | None:
        """None before the first member joined."""
        return self._membership.topology

    @property
    def configured(self) -> ConfiguredTopology | None:
        """What the topology meant when it was judged last; None if it was not since the group was loaded."""
        return self._membership.configured

    def target_of(self, member_id: str) -> Partitions:
        """Return the keys of the tasks that the member shall have."""
        return self._membership.target.of(member_id)

    def epochs_from(self, lowest: int) -> None:
        """The next group epoch is at least this; so is the one under which a new group assigns nothing yet."""
        super().epochs_from(lowest)
        if self.topology is None:
            self.target.group_epoch = self.target.epoch = max(FIRST_EPOCH, lowest)

    def _own_bytes(self) -> int:
        return super()._own_bytes() + (0 if self.topology is None else self.topology.size_bytes)

    def tick(self, now: float) -> list[GroupEffect]:
        """Late members are given up; the first target is made once its delay is over."""
        self._membership.remove_late(now)
        self._membership.end_delay(now)
        return self._membership.drain()

    def next_deadline(self) -> float | None:
        """A lower bound, as of all kinds; or the end of the delay."""
        deadlines = (super().next_deadline(), self._membership.delayed_until)
        return min((at for at in deadlines if at is not None), default=None)

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """The next heartbeat is judged by the new topics."""
        return []

    # -- offsets

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """STALE_MEMBER_EPOCH asks the member to heartbeat and to commit under its new epoch. An epoch that is over
        counts if the member has had the tasks of all these partitions since then.
        """
        if ref.generation < 0 and not len(self.roster):
            return ErrorCode.none  # an admin
        member = self._membership.named(MemberRef(ref.member_id))
        if isinstance(member, ErrorCode):
            return member
        if version < FIRST_COMMIT_WITH_MEMBER_EPOCH:
            return ErrorCode.unsupported_version
        tasks = self._tasks_of(keys) if ref.generation < member.epoch else None
        is_valid = ref.generation == member.epoch or (tasks is not None and member.has_had(tasks, ref.generation))
        return ErrorCode.none if is_valid else ErrorCode.stale_member_epoch

    def _tasks_of(self, keys: Collection[int]) -> list[int] | None:
        """Return the tasks that consume these partitions; None if one of them is of no task."""
        topology, topics, found = self.topology, self._image().topics_by_number, []
        for number, index in map(split_partition_key, keys):
            topic = topics.get(number)
            reader = None if topology is None or topic is None else topology.readers.get(topic.name)
            if reader is None:
                return None
            found.append(task_key(reader, index))
        return found

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """The same as `check_commit`, for a reader that says who it is."""
        if ref.generation < 0 and not ref.member_id:
            return ErrorCode.none  # an admin
        member = self._membership.named(MemberRef(ref.member_id))
        if isinstance(member, ErrorCode):
            return member
        return ErrorCode.none if ref.generation == member.epoch else ErrorCode.stale_member_epoch

    # -- heartbeats

    def _new_member(self, member_id: str) -> StreamsMember:
        return StreamsMember(member_id)

    def why_not(self, request: StreamsHeartbeat) -> MemberHeartbeatAnswer | None:
        """Return why the request is refused by the topology; nothing changes."""
        topology = self._topology_for(request)
        if topology is None:
            message = "Topology updates are not supported yet."
            return MemberHeartbeatAnswer(ErrorCode.invalid_request, request.member_id, message=message)
        try:
            configured = self._membership.judge(topology).configured
        except InvalidTopologyError as error:
            return MemberHeartbeatAnswer(ErrorCode.streams_invalid_topology, request.member_id, message=str(error))
        if configured.is_ready and configured.subtopologies is not None:
            for tasks in request.tasks or ():
                if fault := _why_no_tasks(configured.subtopologies, tasks):
                    return MemberHeartbeatAnswer(ErrorCode.invalid_request, request.member_id, message=fault)
        return None

    def _why_not(self, request: StreamsHeartbeat) -> MemberHeartbeatAnswer | None:
        return self.why_not(request)

    def _topology_for(self, request: StreamsHeartbeat) -> Topology | None:
        """Return the group's topology, or the one that it begins with; None if the member has another one."""
        own, said = self.topology, request.topology
        if own is None or said is None:
            return own or said
        return own if own.epoch > said.epoch or own.is_same(said) else None

    def _advance(
        self, now: float, known: StreamsMember | None, wishes: StreamsMember, request: StreamsHeartbeat
    ) -> StreamsMember:
        topology = self._topology_for(request)
        assert topology is not None, "it was asked before"
        self._is_new = self.topology is None
        member = self._membership.advance(now, known, wishes, topology, self._owned(request))
        if request.shuts_down:
            self._membership.shut_down(member.member_id)
        return member

    def _owned(self, request: StreamsHeartbeat) -> Partitions | None:
        return None if request.tasks is None else owned_tasks(self.topology, *request.tasks)

    def _leave_by(self, request: StreamsHeartbeat) -> MemberHeartbeatAnswer:
        if request.shuts_down and len(self.roster):
            self._membership.shut_down(request.member_id)
        return super()._leave_by(request)

    def _has_news(self, known: StreamsMember | None, member: StreamsMember, request: StreamsHeartbeat) -> bool:
        """Return whether its tasks changed, or it says others than it has: then it missed an answer, and Kafka's
        coordinator would not repeat that.
        """
        said = self._owned(request)
        return known is None or member.assigned != known.assigned or said not in (None, member.assigned)

    def _shows_its_epoch(self, member: StreamsMember, request: StreamsHeartbeat) -> bool:
        return member.shows(request.member_epoch, self._owned(request))

    def _refusal(self, request: StreamsHeartbeat, code: ErrorCode) -> MemberHeartbeatAnswer:
        return MemberHeartbeatAnswer(code, request.member_id, message=self._reason(request, code))

    def _reason(self, request: StreamsHeartbeat, code: ErrorCode) -> str | None:
        if code is ErrorCode.unknown_member_id:
            return f"Member {request.member_id} is not a member of group {self.group_id}."
        if code is ErrorCode.group_max_size_reached:
            return f"The streams group has reached its maximum capacity of {self._size_max()} members."
        member = self.roster.get(request.member_id)
        if code is not ErrorCode.fenced_member_epoch or member is None:
            return None
        relation = "greater" if request.member_epoch > member.epoch else "smaller"
        return (
            f"The streams group member has a {relation} member epoch ({request.member_epoch}) than the one known by the"
            f" group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )

    def _answer(
        self, now: float, member: StreamsMember, request: StreamsHeartbeat, assigned: Partitions | None
    ) -> StreamsAnswer:
        moves = assigned is not None and member.endpoint is not None
        if moves and not self._is_new:
            self._membership.move_endpoints()
        epoch = self._membership.endpoint_epoch
        knows_endpoints = request.endpoint_epoch == epoch + (moves and self._is_new)
        configured = self.configured
        return StreamsAnswer(
            ErrorCode.none,
            member.member_id,
            member.epoch,
            assigned,
            topology=self.topology,
            statuses=tuple(self._statuses(now, member)),
            endpoint_epoch=epoch,
            endpoints=None if knows_endpoints else tuple(self._endpoints(member)),
            missing=() if configured is None else configured.missing,
        )

    def _statuses(self, now: float, member: StreamsMember) -> Iterable[Status]:
        """Yield what is wrong, in Kafka's order."""
        topology, configured = self.topology, self.configured
        if topology is not None and member.topology_epoch < topology.epoch:
            yield Status(
                StatusCode.STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch"
                f" {topology.epoch}.",
            )
        if delayed := self._membership.why_delayed(now):
            yield delayed
        if configured is not None and configured.status is not None:
            yield configured.status
        if (by := self._membership.shut_down_by) is not None:
            yield Status(
                StatusCode.SHUTDOWN_APPLICATION,
                f"Streams group member {by} encountered a fatal error and requested a shutdown for the entire"
                " application.",
            )

    # -- interactive queries

    def _endpoints(self, last: StreamsMember) -> Iterable[EndpointPartitions]:
        """Yield those of all members that have one, this member's last."""
        configured = self.configured
        known_ids = {member.member_id for member in self.roster}
        self._said_endpoints = {name: said for name, said in self._said_endpoints.items() if name in known_ids}
        for member in (*(each for each in self.roster if each.member_id != last.member_id), last):
            if member.endpoint is None:
                continue
            known = self._said_endpoints.get(member.member_id)
            if known is None or known[0] is not member or known[1] is not configured:
                known = (member, configured, self._endpoint(member, member.endpoint))
                self._said_endpoints[member.member_id] = known
            yield known[2]

    def _endpoint(self, member: StreamsMember, endpoint: QueryEndpoint) -> EndpointPartitions:
        by_role: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        for task in map(task_of, sorted(member.assigned)):
            by_role[task.is_standby].setdefault(task.subtopology, []).append(task.partition)
        active, standby = (self._read_by(tasks) for tasks in by_role)
        return EndpointPartitions(endpoint, active, standby)

    def _read_by(self, tasks: Mapping[int, list[int]]) -> PartitionsByName:
        """Return the partitions that tasks consume; of a topic with fewer than there are tasks, the first, as in
        Kafka.
        """
        topology, topics, found = self.topology, self._image().topics_by_name, PartitionsByName()
        for number, partitions in tasks.items():
            assert topology is not None, "tasks are of a topology"
            for name in dict.fromkeys(topology.by_id[topology.ids[number]].read_topics):
                if (topic := topics.get(name)) is not None:
                    found[name] = partitions[: undeleted_count(topic)]
        return found


def _why_no_tasks(subtopologies: Mapping[str, ConfiguredSubtopology], tasks: Iterable[Any]) -> str | None:
    for each in tasks:
        known = subtopologies.get(each.subtopology_id)
        if known is None:
            return f"Subtopology {each.subtopology_id} does not exist in the topology."
        for partition in each.partitions:
            if not 0 <= partition < known.task_count:
                return (
                    f"Task {partition} for subtopology {each.subtopology_id} is invalid. Number of tasks for this"
                    f" subtopology: {known.task_count}"
                )
    return None
