"""A share group (KIP-932): its members and the partitions that each reads; and the records that they have in flight.

Place: driven by held_groups.py as a CoordinatedGroup; heartbeats come by coordinator.py, acknowledgements and
acquisitions by owner.py, which stores `partitions`.
    group epoch    rises when members, subscriptions or topics change
    member epoch   the group epoch that the member's assignment was made for
Invariant: epochs never go back; a member learns only what is stored; every token gets one answer. A heartbeat that
changes nothing stores nothing. What a member had acquired is free once it was given up; one that leaves may still
acknowledge, until its session or its connection ends.
If the process crashes, the next coordinator restores the members; records that were acquired are available to it.
Source: KIP-932, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_memory import NO_ADDRESS, group_bytes, sizes_of_group
from headrace.agent.groups.group_values import Abandon, GroupEffect, MemberRef, Token
from headrace.agent.groups.outbox import Outbox
from headrace.agent.groups.share.assignor import assign
from headrace.agent.groups.share.rules import ShareGroupConfigs
from headrace.agent.groups.share.saved import PROTOCOL_TYPE, SavedShareGroup, decode, saved_group
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.agent.groups.share.share_values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareHeartbeatAnswer,
    ShareHeartbeatRequest,
    ShareMember,
    ShareTopics,
)
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage

SHARE_PARTITION_BYTES = 704
"""A partition of the group, about, besides its ranges."""


class ShareGroup:
    """Implements agent.groups.coordinated.CoordinatedGroup."""

    kind = GroupKind.SHARE
    protocol_type: str | None = PROTOCOL_TYPE
    classic_protocol = None

    def __init__(
        self,
        group_id: str,
        size_max: Callable[[], int],
        configs: Callable[[], ShareGroupConfigs],
        topics: Callable[[], ShareTopics],
    ) -> None:
        """`configs` are the group's own, as configured now; `topics`: the newest picture."""
        self.group_id = group_id
        self.group_epoch = self.target_epoch = self._lowest = 0
        self.members: dict[str, ShareMember] = {}
        self.partitions: dict[int, SharePartition] = {}
        """By partition key; filled by owner.py."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when records became available, or the group ended."""
        self.on_deleted: Callable[[], None] = lambda: None
        """Called when the group was deleted on demand, before it ends."""
        self.on_gone: Callable[[Collection[int]], None] = lambda keys: None
        """Called with the keys of partitions that were removed."""
        self.followed = MetadataImage()
        """The image by which gone partitions were looked for last."""
        self.on_rebalance: Callable[[], None] = lambda: None
        """Called with each new group epoch."""
        self.is_dead = False
        self.state_name = "Empty"
        """Kafka's name of the state. Kept, not looked up: metrics read it from another thread."""
        self._size_max, self.configs, self._topics = size_max, configs, topics
        self._outbox = Outbox(self.snapshot)
        self._sessions: dict[str, float] = {}
        """Member id -> when it is given up unless it is heard of."""
        self._judged_by: object = None

    # -- what both kinds have

    def epochs_from(self, lowest: int) -> None:
        """The next group epoch is at least this."""
        self._lowest = lowest

    def sizes(self) -> Mapping[str, int]:
        """See CoordinatedGroup. The ranges of the partitions have a separate limit (share_memory.py)."""
        own = group_bytes(self.group_id) + SHARE_PARTITION_BYTES * len(self.partitions)
        return sizes_of_group(own, ((each.client_host, each.size_bytes()) for each in self.members.values()))

    @property
    def address(self) -> str:
        """The client for which the group's memory counts: its first member."""
        return next((each.client_host for each in self.members.values()), NO_ADDRESS)

    def member_bytes(self, member_id: str) -> int:
        """See CoordinatedGroup."""
        member = self.members.get(member_id)
        return 0 if member is None else member.size_bytes()

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """A share group has no committed offsets."""
        return ErrorCode.group_id_not_found

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """A share group has no committed offsets."""
        return ErrorCode.group_id_not_found

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return frozenset[str]().union(*(each.topic_names for each in self.members.values()))

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """Forget partitions that are gone: that the image before had, and this one has not. One that neither has is
        newer: an image may be behind what the group has loaded. The next heartbeat is judged by the new topics.
        """
        before, self.followed = self.followed, image
        if before.topics_by_number is image.topics_by_number:
            return []
        gone = [key for key in self.partitions if _has(before, key) and not _has(image, key)]
        for key in gone:
            del self.partitions[key]
        if gone:
            self.on_gone(gone)
        return []

    def tick(self, now: float) -> list[GroupEffect]:
        """Give up late members, and release what was acquired for too long."""
        late = [member_id for member_id, at in self._sessions.items() if at <= now]
        for member_id in late:
            self._remove(member_id)
        attempts = self.configs().limits.attempts
        for member_id in late:
            self._free(partial(_release, member_id, attempts))
        self._free(lambda partition: partition.expire(now, attempts))
        return self._drain()

    def next_deadline(self) -> float | None:
        """Return when the first session or lock ends; heartbeats postpone it without a call."""
        locks = (at for partition in self.partitions.values() if (at := partition.next_deadline()) is not None)
        return min((*self._sessions.values(), *locks), default=None)

    def is_idle(self) -> bool:
        """No member is in it, and no record in flight."""
        return not self.members and all(partition.is_quiet for partition in self.partitions.values())

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """Return what was not stored for certain must not be built upon: the group is restored from the store."""
        if self.is_dead:
            return []
        if code is ErrorCode.none:
            self._outbox.stored(revision)
            return self._drain()
        self._outbox.refuse_all(code)
        self._outbox.emit(Abandon())
        return self.close(code)

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Requests that wait are refused with `code`; nothing is stored any more."""
        self.is_dead, self.state_name = True, "Dead"
        self._outbox.refuse_all(code)
        self._outbox.give_up()
        self.on_freed()
        return self._outbox.drain()

    # -- members

    def share_heartbeat(self, now: float, request: ShareHeartbeatRequest, token: Token) -> list[GroupEffect]:
        """ShareGroupHeartbeat: join, continue or leave; answered once what it says is stored."""
        if self.is_dead:
            answer = ShareHeartbeatAnswer(ErrorCode.not_coordinator, request.member_id)
        elif request.member_epoch == LEAVE_EPOCH:
            answer = self._leave(request)
        else:
            answer = self._go_on(now, request)
        self._outbox.answer(token, answer, lambda code: ShareHeartbeatAnswer(code, request.member_id))
        return self._drain()

    def judges_by(self, topics: ShareTopics) -> bool:
        """Return whether the next heartbeat is judged by the same topics as the last."""
        return self._judged_by is topics.source

    def begin(self) -> None:
        """Take the place of a group of which nothing was stored."""
        self._outbox.changed()

    def create(self, token: Token) -> list[GroupEffect]:
        """Begin without members; answered with a code once that is stored."""
        self.begin()
        self._outbox.answer(token, ErrorCode.none, lambda code: code)
        return self._drain()

    def snapshot(self) -> SavedShareGroup:
        """The group as it is to be stored now."""
        return saved_group(self.group_epoch, self.target_epoch, self.state_name, self.members.values())

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, new sessions."""
        state, members = decode(record.data)
        self.group_epoch, self.target_epoch = state.group_epoch, state.target_epoch
        for member in members:
            self.members[member.member_id] = member
            self._sessions[member.member_id] = now + self.configs().session_timeout
        self.state_name = self._state()

    # -- insides

    def _go_on(self, now: float, request: ShareHeartbeatRequest) -> ShareHeartbeatAnswer:
        known = self.members.get(request.member_id)
        joins = request.member_epoch == JOIN_EPOCH
        if known is None and not joins:
            return ShareHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
        if known is None and len(self.members) >= self._size_max():
            return ShareHeartbeatAnswer(ErrorCode.group_max_size_reached, request.member_id)
        if known is not None and not joins and request.member_epoch not in (known.epoch, known.previous_epoch):
            return ShareHeartbeatAnswer(ErrorCode.fenced_member_epoch, request.member_id)
        wishes = known or ShareMember(request.member_id, None, "", "", frozenset())
        wishes = replace(
            wishes,
            rack_id=wishes.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topic_names=wishes.topic_names if request.topic_names is None else request.topic_names,
        )
        if wishes != known:
            self.members[wishes.member_id] = wishes
            self._outbox.changed()
        self._judge(changed=known is None or known.topic_names != wishes.topic_names)
        member = self.members[wishes.member_id]
        if member.epoch != self.target_epoch:
            member = replace(member, epoch=self.target_epoch, previous_epoch=member.epoch)
            self.members[member.member_id] = member
            self._outbox.changed()
        self._sessions[member.member_id] = now + self.configs().session_timeout
        tell = joins or request.topic_names is not None or request.member_epoch != member.epoch
        assigned = member.assigned if tell else None
        return ShareHeartbeatAnswer(ErrorCode.none, member.member_id, member.epoch, assigned)

    def _judge(self, *, changed: bool) -> None:
        """Make the target again if members, subscriptions or topics changed."""
        topics = self._topics()
        if not changed and self.target_epoch == self.group_epoch and self.judges_by(topics):
            return
        subscriptions = {
            member_id: frozenset(topics.numbers[name] for name in member.topic_names if name in topics.numbers)
            for member_id, member in self.members.items()
        }
        target = assign(subscriptions, topics.partitions)
        self._judged_by = topics.source
        moved = {m: keys for m, keys in target.items() if keys != self.members[m].assigned}
        if changed or moved or self.target_epoch != self.group_epoch:
            self._raise_epoch()
            self.target_epoch = self.group_epoch
            for member_id, keys in moved.items():
                self.members[member_id] = replace(self.members[member_id], assigned=keys)
            self._outbox.changed()

    def _raise_epoch(self) -> None:
        self.group_epoch = max(self.group_epoch + 1, self._lowest)
        self.on_rebalance()

    def _leave(self, request: ShareHeartbeatRequest) -> ShareHeartbeatAnswer:
        if request.member_id not in self.members:
            return ShareHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
        self._remove(request.member_id)
        return ShareHeartbeatAnswer(ErrorCode.none, request.member_id, LEAVE_EPOCH)

    def _remove(self, member_id: str) -> None:
        """It left or was given up."""
        del self.members[member_id]
        self._sessions.pop(member_id, None)
        self._raise_epoch()
        self._outbox.changed()

    def _free(self, release: Callable[[SharePartition], bool]) -> None:
        """Do it in every partition, and say so if records became available."""
        freed = [partition for partition in self.partitions.values() if release(partition)]
        if freed:
            self.on_freed()

    def _state(self) -> str:
        return "Stable" if self.members else "Empty"

    def _drain(self) -> list[GroupEffect]:
        if self._outbox.has_news and not self.is_dead:
            self.state_name = self._state()
        return self._outbox.drain()


def _release(member_id: str, attempts: int, partition: SharePartition) -> bool:
    return partition.release(member_id, attempts)


def _has(image: MetadataImage, key: int) -> bool:
    number, index = split_partition_key(key)
    topic = image.topics_by_number.get(number)
    return topic is not None and topic.has(index)
