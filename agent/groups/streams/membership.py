"""The members of a streams group, its topology, and the target: which task runs where, as of one group epoch. Pure.

Place: under group.py, above ../members/reconciliation.py. The stored form is written by each change and read when an
agent becomes the coordinator.
Invariant: the group epoch rises when members, the topology, its topics or the number of standbys change; the target is
of the group epoch `epoch`, and is made again only while that is behind, no sooner than the assignment interval after
the last. While topics are missing or do not fit, it is empty. Stored fields are added with defaults, never renumbered;
an unknown format is refused.
If the process crashes, the next coordinator continues with the same epochs and tasks; a delay in progress ends.
Source: KIP-1071, Kafka's GroupMetadataManager (streamsGroupHeartbeat) and StreamsGroup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.agent.groups.coordinated import decode_saved
from headrace.agent.groups.members.member import NOTHING, Partitions, PartitionsByTopic, by_topic, from_topics
from headrace.agent.groups.members.reconciliation import MemberState, OwnerMembership, TargetParts
from headrace.agent.groups.streams.assignor import TaskMember, assign
from headrace.agent.groups.streams.configured_topology import ConfiguredTopology, Status, StatusCode, configure
from headrace.agent.groups.streams.members import QueryEndpoint, StreamsMember, StreamsRoster
from headrace.agent.groups.streams.rules import StreamsGroupConfigs
from headrace.agent.groups.streams.topology import Topology
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.shown_counts import undeleted_count

FORMAT = 1
PROTOCOL_TYPE = "streams"
FIRST_EPOCH = 1
"""The group epoch, and the target's, of a group without members so far; nothing is assigned under it."""
NOT_VALIDATED = -1


class _SavedMember(msgspec.Struct, frozen=True):
    """Task keys by number and role, as `by_topic` gives them; `since`: member epoch -> keys that it has had since."""

    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: float
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None
    client_tags: tuple[tuple[str, str], ...]
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: PartitionsByTopic
    to_revoke: PartitionsByTopic
    since: dict[int, PartitionsByTopic]
    target: PartitionsByTopic


class SavedStreamsGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined. `digest`: of the topics that the group was judged by."""

    group_epoch: int
    target_epoch: int
    state_name: str
    topology: Topology | None
    digest: bytes
    validated_epoch: int
    standbys: int
    endpoint_epoch: int
    shut_down_by: str | None
    members: list[_SavedMember]
    format: int = FORMAT

    def record(self) -> GroupRecord:
        """Return it as the metastore keeps it, and what it may tell without opening it."""
        names = () if self.topology is None else tuple(sorted(self.topology.readers))
        return GroupRecord(GroupKind.STREAMS, self.state_name, PROTOCOL_TYPE, names, msgspec.msgpack.encode(self))


def _save(member: StreamsMember, target: Partitions) -> _SavedMember:
    epochs: dict[int, set[int]] = {}
    for key, epoch in member.since.items():
        epochs.setdefault(epoch, set()).add(key)
    known = dict[Partitions, PartitionsByTopic]()

    def listed(keys: Partitions) -> PartitionsByTopic:
        """A stable member has the tasks of its target, all since one epoch."""
        if keys not in known:
            known[keys] = by_topic(keys)
        return known[keys]

    return _SavedMember(
        member.member_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout,
        member.topology_epoch,
        member.process_id,
        member.endpoint,
        member.client_tags,
        member.epoch,
        member.previous_epoch,
        member.state,
        listed(member.assigned),
        listed(member.to_revoke),
        {epoch: listed(frozenset(epochs[epoch])) for epoch in sorted(epochs)},
        listed(target),
    )


def _load(saved: _SavedMember) -> StreamsMember:
    return StreamsMember(
        saved.member_id,
        rack_id=saved.rack_id,
        client_id=saved.client_id,
        client_host=saved.client_host,
        epoch=saved.epoch,
        previous_epoch=saved.previous_epoch,
        assigned=from_topics(saved.assigned),
        rebalance_timeout=saved.rebalance_timeout,
        state=saved.state,
        to_revoke=from_topics(saved.to_revoke),
        since={key: epoch for epoch, keys in saved.since.items() for key in from_topics(keys)},
        topology_epoch=saved.topology_epoch,
        process_id=saved.process_id,
        endpoint=None if saved.endpoint is None else QueryEndpoint(*saved.endpoint),
        client_tags=saved.client_tags,
    )


def saved_group(data: bytes) -> SavedStreamsGroup:
    """Return what a coordinator stored. Errors as decode_saved."""
    return decode_saved(data, SavedStreamsGroup, "streams group", FORMAT)


def configured_among(topology: Topology, topics: Mapping[str, TopicImage]) -> ConfiguredTopology:
    """Return what the topology means among these topics. InvalidTopologyError for one that no topics fit."""
    names = (name for name in topology.required_topics if name in topics)
    return configure(topology, {name: undeleted_count(topics[name]) for name in names})


class Judged(NamedTuple):
    """What a topology means by one picture of the topics."""

    topology: Topology
    topics: Mapping[str, TopicImage]
    digest: bytes
    configured: ConfiguredTopology


class StreamsGroupMembership(OwnerMembership[StreamsMember]):
    """Roster, target, topology, deadlines and outbox of one group."""

    roster: StreamsRoster
    target: TargetParts

    def __init__(
        self,
        size_max: Callable[[], int],
        configs: Callable[[], StreamsGroupConfigs],
        image: Callable[[], MetadataImage],
        on_rebalance: Callable[[], None],
    ) -> None:
        """`size_max` and `configs` as configured now; `image`: the newest one."""
        super().__init__(size_max)
        self.roster = StreamsRoster()
        self.target = TargetParts(on_rebalance)
        self.target.group_epoch = self.target.epoch = FIRST_EPOCH
        self.topology: Topology | None = None
        self.endpoint_epoch = 0
        self.shut_down_by: str | None = None
        """The member that asked the whole application to stop."""
        self.delayed_until: float | None = None
        """When the first target is made."""
        self._made_at: float | None = None
        self._judged: Judged | None = None
        self._digest = b""
        self._validated_epoch = NOT_VALIDATED
        self._standbys = 0
        self._configs, self._image = configs, image

    # -- topology

    def judge(self, topology: Topology) -> Judged:
        """Return what it means by the newest topics. InvalidTopologyError for a topology that no topics fit."""
        topics, known = self._image().topics_by_name, self._judged
        if known is not None and known.topology is topology and known.topics is topics:
            return known
        found = {name: topics[name] for name in topology.required_topics if name in topics}
        digest = _digest(found)
        if known is not None and known.topology is topology and known.digest == digest:
            configured = known.configured
        else:
            configured = configured_among(topology, found)
        self._judged = Judged(topology, topics, digest, configured)
        return self._judged

    @property
    def configured(self) -> ConfiguredTopology | None:
        """What the group's topology meant when it was judged last; None if it was not since it was loaded."""
        return None if self._judged is None or self._judged.topology is not self.topology else self._judged.configured

    @property
    def is_ready(self) -> bool:
        """Return whether all topics were there, and fit, when the group epoch rose last."""
        return self.topology is not None and self._validated_epoch == self.topology.epoch

    # -- members

    def advance(
        self,
        now: float,
        before: StreamsMember | None,
        member: StreamsMember,
        topology: Topology,
        owned: Partitions | None,
    ) -> StreamsMember:
        """Take the member's new wishes in and bring it one step on; `before`: as it was known, None for a new one.
        `topology`: the group's, or the one that it begins with.
        """
        begins = not len(self.roster)
        self.topology, judged = topology, self.judge(topology)
        if member is not before:
            self.put(member)
        self._raise_if_changed(judged, changed=member is not before)
        delay = self._configs().initial_rebalance_delay
        if begins and delay > 0 and self.delayed_until is None:
            self.delayed_until = now + delay
        self._renew(now, judged.configured)
        self.target.judged_by = judged.topics
        return self.step(now, member, owned, lambda key: self.roster.is_taken(key, member.process_id))

    def _raise_if_changed(self, judged: Judged, *, changed: bool) -> None:
        validated = judged.topology.epoch if judged.configured.is_ready else NOT_VALIDATED
        now = (judged.digest, validated, self._configs().standbys)
        if changed or now != (self._digest, self._validated_epoch, self._standbys):
            self._digest, self._validated_epoch, self._standbys = now
            self.target.raise_epoch()
            self.outbox.changed()

    def why_delayed(self, now: float) -> Status | None:
        """Return why the target is not made yet, if that is on purpose."""
        if self.delayed_until is not None:
            return _delayed("initial rebalance delay")
        return None if self.target.is_made or self._may_renew(now) else _delayed("assignment interval")

    def _may_renew(self, now: float) -> bool:
        return self._made_at is None or now >= self._made_at + self._configs().assignment_interval

    def _renew(self, now: float, configured: ConfiguredTopology) -> None:
        """Make the target of the group epoch, unless it is made or it is no time to."""
        if self.delayed_until is not None or self.target.is_made or not self._may_renew(now):
            return
        assert self.topology is not None
        parts = dict[str, frozenset[int]]()
        if configured.is_ready and configured.subtopologies is not None:
            counted = [configured.subtopologies[name] for name in self.topology.ids]
            workers = [
                TaskMember(each.member_id, each.process_id, self.target.of(each.member_id)) for each in self.roster
            ]
            parts = assign(workers, [(each.task_count, each.is_stateful) for each in counted], self._standbys)
        for member in self.roster:
            self.target.give(member.member_id, parts.get(member.member_id, NOTHING))
        self.target.epoch, self._made_at = self.target.group_epoch, now
        self.outbox.changed()

    def end_delay(self, now: float) -> None:
        """Make the first target, if the delay is over."""
        if self.delayed_until is None or now < self.delayed_until:
            return
        self.delayed_until = None
        if len(self.roster) and self.configured is not None:
            self._renew(now, self.configured)

    def remove(self, member: StreamsMember) -> None:
        """It left or was given up; what it held is free at once. A request to stop ends with the last one."""
        super().remove(member)
        if not len(self.roster):
            self.shut_down_by = None

    def shut_down(self, member_id: str) -> None:
        """Ask all members to stop, for this one; the first one counts."""
        if self.shut_down_by is None:
            self.shut_down_by = member_id
            self.outbox.changed()

    def move_endpoints(self) -> None:
        """Members have to learn where queries go now."""
        self.endpoint_epoch += 1
        self.outbox.changed()

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the tasks consume."""
        return frozenset() if self.topology is None else frozenset(self.topology.readers)

    def _session_timeout(self, member: StreamsMember) -> float:
        return self._configs().session_timeout

    def _state(self) -> str:
        return "NotReady" if len(self.roster) and not self.is_ready else super()._state()

    # -- what is stored

    def snapshot(self) -> SavedStreamsGroup:
        """The group as it is to be stored now."""
        return SavedStreamsGroup(
            self.target.group_epoch,
            self.target.epoch,
            self.state_name,
            self.topology,
            self._digest,
            self._validated_epoch,
            self._standbys,
            self.endpoint_epoch,
            self.shut_down_by,
            [_save(member, self.target.of(member.member_id)) for member in self.roster],
        )

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and tasks, new sessions."""
        state = saved_group(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        self.topology, self._digest, self._validated_epoch = state.topology, state.digest, state.validated_epoch
        self._standbys, self.endpoint_epoch = state.standbys, state.endpoint_epoch
        self.shut_down_by = state.shut_down_by
        for saved in state.members:
            self.adopt_with(now, _load(saved), from_topics(saved.target))
        self.state_name = self._state()


def _delayed(why: str) -> Status:
    return Status(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {why}.")


def _digest(topics: Mapping[str, Any]) -> bytes:
    """Return the digest of those of the required topics that are there."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(topics):
        found.update(f"{name} {topics[name].topic_id} {undeleted_count(topics[name])}\n".encode())
    return found.digest()
