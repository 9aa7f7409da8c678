"""The members of a share group and the partitions that each reads. Pure.

Place: under group.py, above ../members/membership.py.
    member epoch   the group epoch that the member's assignment was made for
Invariant: a member's assignment is its part of the target: several members may read one partition, so nothing has to be
given up before.
Source: KIP-932, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.agent.groups.members.epochs import GroupEpochs
from headrace.agent.groups.members.membership import GroupMembership
from headrace.agent.groups.members.roster import MemberRoster
from headrace.agent.groups.share.assignor import assign
from headrace.agent.groups.share.saved import SavedShareGroup, decode, saved_group
from headrace.agent.groups.share.share_values import ShareMember, ShareTopics
from headrace.metastore.api.groups import GroupRecord


class ShareGroupMembership(GroupMembership[ShareMember]):
    """Members, and the target that they are brought to by one heartbeat each."""

    def __init__(
        self,
        size_max: Callable[[], int],
        session_timeout: Callable[[], float],
        topics: Callable[[], ShareTopics],
        on_rebalance: Callable[[], None],
    ) -> None:
        """`size_max` and `session_timeout` (seconds) as configured now; `topics`: the newest picture."""
        super().__init__(size_max)
        self.roster = MemberRoster[ShareMember]()
        self.target = GroupEpochs(on_rebalance)
        self._topics, self._timeout = topics, session_timeout

    def advance(self, now: float, before: ShareMember | None, member: ShareMember) -> ShareMember:
        """Take the member's new wishes in and bring it to the target; `before`: as it was known, None for a new one."""
        if member is not before:
            self.put(member)
        self._judge(changed=before is None or before.topic_names != member.topic_names)
        judged = self.roster.get(member.member_id) or member
        after = judged.at_epoch(self.target.epoch)
        if after is not judged:
            self.put(after)
        return after

    def _judge(self, *, changed: bool) -> None:
        """Make the target again if members, subscriptions or topics changed."""
        topics = self._topics()
        if not changed and self.target.is_made and self.target.is_judged_by(topics.source):
            return
        subscriptions = {
            member.member_id: frozenset(topics.numbers[name] for name in member.topic_names if name in topics.numbers)
            for member in self.roster
        }
        target = assign(subscriptions, topics.partitions)
        self.target.judged_by = topics.source
        moved = [
            replace(member, assigned=keys)
            for member in self.roster
            if (keys := target[member.member_id]) != member.assigned
        ]
        if changed or moved or not self.target.is_made:
            self.target.raise_epoch()
            self.target.epoch = self.target.group_epoch
            for member in moved:
                self.roster.put(member)
            self.outbox.changed()

    def _session_timeout(self, member: ShareMember) -> float:
        return self._timeout()

    def _state(self) -> str:
        return "Stable" if len(self.roster) else "Empty"

    # -- what is stored

    def snapshot(self) -> SavedShareGroup:
        """The group as it is to be stored now."""
        return saved_group(self.target.group_epoch, self.target.epoch, self.state_name, self.roster)

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, new sessions."""
        state, members = decode(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        for member in members:
            self.adopt(now, member)
        self.state_name = self._state()
