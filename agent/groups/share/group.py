"""A share group (KIP-932): its members and the partitions that each reads; and the records that they have in flight.

Place: a MemberGroup (../members/member_group.py), with what only this kind has: membership.py assigns partitions;
acknowledgements and acquisitions come by owner.py, which stores `partitions`.
Invariant: what a member had acquired is free once it was given up; one that leaves may still acknowledge, until its
session or its connection ends.
If the process crashes, the next coordinator restores the members; records that were acquired are available to it.
Source: KIP-932, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_memory import NO_ADDRESS
from headrace.agent.groups.group_values import GroupEffect, MemberRef, Token
from headrace.agent.groups.members.member import MemberHeartbeat
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.agent.groups.members.membership import MemberRoster
from headrace.agent.groups.share.membership import PROTOCOL_TYPE, ShareGroupMembership, ShareMember, ShareTopics
from headrace.agent.groups.share.rules import ShareGroupConfigs
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage

SHARE_PARTITION_BYTES = 704
"""A partition of the group, about, besides its ranges."""


class ShareGroup(MemberGroup[ShareMember, MemberHeartbeat]):
    """Members, and the records that they have in flight."""

    kind = GroupKind.SHARE
    protocol_type: str | None = PROTOCOL_TYPE
    keeps_offsets = False
    _membership: ShareGroupMembership

    def __init__(
        self,
        group_id: str,
        size_max: Callable[[], int],
        configs: Callable[[], ShareGroupConfigs],
        topics: Callable[[], ShareTopics],
        on_rebalance: Callable[[], None] = lambda: None,
    ) -> None:
        """`configs` are the group's own, as configured now; `topics`: the newest picture. `on_rebalance` is called with
        each new group epoch.
        """
        super().__init__(
            group_id, ShareGroupMembership(size_max, lambda: configs().session_timeout, topics, on_rebalance)
        )
        self.configs = configs
        self.partitions: dict[int, SharePartition] = {}
        """By partition key; filled by owner.py."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when records became available, or the group ended."""
        self.on_deleted: Callable[[], None] = lambda: None
        """Called when an admin deleted the group, before it ends."""
        self.on_gone: Callable[[Collection[int]], None] = lambda keys: None
        """Called with the keys of partitions that were removed."""
        self.followed = MetadataImage()
        """The image by which gone partitions were looked for last."""

    @property
    def members(self) -> MemberRoster[ShareMember]:
        return self.roster

    @property
    def address(self) -> str:
        """The client for which the group's memory counts: its first member."""
        return next((each.client_host for each in self.roster), NO_ADDRESS)

    def _own_bytes(self) -> int:
        """The ranges of the partitions have a separate limit (share_memory.py)."""
        return super()._own_bytes() + SHARE_PARTITION_BYTES * len(self.partitions)

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """A share group has no committed offsets."""
        return ErrorCode.group_id_not_found

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """A share group has no committed offsets."""
        return ErrorCode.group_id_not_found

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
        attempts = self.configs().limits.attempts
        for member in self._membership.remove_late(now):
            self._free(partial(_release, member.member_id, attempts))
        self._free(lambda partition: partition.expire(now, attempts))
        return self._membership.drain()

    def next_deadline(self) -> float | None:
        """Return when the first session or lock ends, or earlier: heartbeats postpone it without a call."""
        locks = [at for partition in self.partitions.values() if (at := partition.next_deadline()) is not None]
        session = super().next_deadline()
        return min(locks if session is None else [session, *locks], default=None)

    def is_idle(self) -> bool:
        """No member is in it, and no record in flight."""
        return super().is_idle() and all(partition.is_quiet for partition in self.partitions.values())

    def deleted(self) -> None:
        """See CoordinatedGroup."""
        self.on_deleted()

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Requests that wait are refused with `code`; nothing is stored any more."""
        effects = super().close(code)
        self.on_freed()
        return effects

    # -- members

    def begin(self) -> None:
        """Take the place of a group of which nothing was stored."""
        self._outbox.changed()

    def create(self, token: Token) -> list[GroupEffect]:
        """Begin without members; answered with a code once that is stored."""
        self.begin()
        self._outbox.answer(token, ErrorCode.none, lambda code: code)
        return self._membership.drain()

    def _new_member(self, member_id: str) -> ShareMember:
        return ShareMember(member_id)

    def _advance(
        self, now: float, known: ShareMember | None, wishes: ShareMember, request: MemberHeartbeat
    ) -> ShareMember:
        return self._membership.advance(now, known, wishes)

    def _has_news(self, known: ShareMember | None, member: ShareMember, request: MemberHeartbeat) -> bool:
        return request.member_epoch != member.epoch

    def _shows_its_epoch(self, member: ShareMember, request: MemberHeartbeat) -> bool:
        """The epoch before it too: it may read what it has read before."""
        return request.member_epoch in (member.epoch, member.previous_epoch)

    def _free(self, release: Callable[[SharePartition], bool]) -> None:
        """Do it in every partition, and say so if records became available."""
        freed = [partition for partition in self.partitions.values() if release(partition)]
        if freed:
            self.on_freed()


def _release(member_id: str, attempts: int, partition: SharePartition) -> bool:
    return partition.release(member_id, attempts)


def _has(image: MetadataImage, key: int) -> bool:
    number, index = split_partition_key(key)
    topic = image.topics_by_number.get(number)
    return topic is not None and topic.has(index)
