"""What every request of a member of a consumer group comes down to: members come, step on, and go. Pure.

Place: under classic_members.py and group.py, which know the two protocols that members speak.
Invariant: whoever must act by a time (heartbeat, give partitions up, join again) and does not is
removed, and its partitions are free. Every change is marked in the outbox, so no answer precedes its save.
If the process dies, the next coordinator restores what was stored (saved.py), with fresh sessions.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.agent.groups.consumer.assignors.assignor import NOTHING, Partitions
from headrace.agent.groups.consumer.conversion import to_classic
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.reconcile import reconcile
from headrace.agent.groups.consumer.roster import ConsumerRoster
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.saved import PROTOCOL_TYPE, SavedConsumerGroup, decode, load_member, save_member
from headrace.agent.groups.consumer.target import Target
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.consumer.values import MemberState
from headrace.agent.groups.outbox import Outbox
from headrace.agent.groups.values import Become, GroupEffect
from headrace.metastore.api.groups import GroupKind, GroupRecord


class GroupMembership:
    """State of one group, and the transitions that both protocols share."""

    kind = GroupKind.CONSUMER
    protocol_type: str | None = PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        rules: ConsumerGroupRules,
        topics: Callable[[Iterable[str]], KnownTopics],
        times: Callable[[], GroupTimes],
        rng: random.Random,
    ) -> None:
        """`topics` by the patterns that are needed; `times` are the group's own, as configured now."""
        self.group_id = group_id
        self.roster = ConsumerRoster()
        self.target = Target(rules.assignors)
        self.is_dead = False
        self.state_name = "Empty"
        """Kafka's name of the state. Kept, not looked up: metrics read it from another thread."""
        self._rules = rules
        self._topics = topics
        self._times = times
        self._rng = rng
        self._outbox = Outbox(self.snapshot)
        self._sessions: dict[str, float] = {}
        """Member id -> when it is given up unless it is heard of."""
        self._overdue: dict[str, float] = {}
        """Member id -> when it is given up unless it does what it was asked to: give partitions up, join or sync."""
        self._wake_at = math.inf
        """No deadline is earlier than this."""
        self._may_downgrade = False
        """Somebody went: maybe the last one who speaks the consumer protocol."""

    # -- members

    def _advance(
        self, now: float, before: ConsumerMember | None, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        """Take the member's new wishes in and bring it one step on; `before`: as it was known, None for a new one."""
        subscribed_as_before = before is not None and before.subscribes_as(member)
        if before is None or member != before:
            self._put(member)
        topics = self._topics(self.roster.patterns)
        if self.target.refresh(self.roster, topics, changed=not subscribed_as_before):
            self._outbox.changed()
        if self.target.renew(self.roster, topics):
            self._outbox.changed()
        after = reconcile(
            member,
            target=self.target.of(member.member_id),
            target_epoch=self.target.epoch,
            owned=owned,
            held_by_others=lambda partition: self.roster.holder(partition) not in (None, member.member_id),
        )
        if after != member:
            self._put(after)
            self._watch_revocation(now, after)
        return after

    def _watch_revocation(self, now: float, member: ConsumerMember) -> None:
        if member.state is MemberState.UNREVOKED:
            self._expect(now, member)
        else:
            self._overdue.pop(member.member_id, None)

    def _put(self, member: ConsumerMember) -> None:
        self.roster.put(member)
        self._outbox.changed()

    def _take_over(self, static: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member came back, maybe as another process: its instance's share is its own again."""
        returned = replace(
            static, member_id=member_id, epoch=0, previous_epoch=0, state=MemberState.STABLE, to_revoke=NOTHING
        )
        if member_id != static.member_id:
            self.roster.remove(static)
            self.target.rename(static.member_id, member_id)
            self._forget_deadlines(static.member_id)
        self._put(returned)
        return returned

    def _remove(self, member: ConsumerMember) -> None:
        """It left or was given up; what it held is free at once."""
        self.roster.remove(member)
        self.target.forget(member.member_id)
        self._forget_deadlines(member.member_id)
        self._outbox.changed()
        self._may_downgrade = True

    def _drain(self) -> list[GroupEffect]:
        """What is to be done now; the last thing that this group asks for when it ends as a classic one."""
        if self._may_downgrade and self._ends_as_classic():
            # of the target's epoch: members that have arrived need not fear to be of another generation
            self._outbox.emit(Become(to_classic(self.roster, self.target.epoch, self._topics(())).record()))
            self._outbox.give_up()
        self._may_downgrade = False
        if self._outbox.has_news and not self.is_dead:
            self.state_name = self._state()
        return self._outbox.drain()

    def _ends_as_classic(self) -> bool:
        speak_classic = all(member.classic is not None for member in self.roster)
        return len(self.roster) > 0 and speak_classic and self._rules.migration.downgrades and not self.is_dead

    def _is_full(self) -> bool:
        return len(self.roster) >= self._rules.size_max

    # -- deadlines

    def _heard_of(self, now: float, member: ConsumerMember) -> None:
        """Its session starts anew."""
        timeout = self._times().session_timeout if member.classic is None else member.classic.session_timeout
        self._sessions[member.member_id] = now + timeout
        self._wake_at = min(self._wake_at, now + timeout)

    def _expect(self, now: float, member: ConsumerMember) -> None:
        """It has its rebalance timeout, from now on, to do what it was asked to."""
        self._overdue[member.member_id] = now + member.rebalance_timeout
        self._wake_at = min(self._wake_at, now + member.rebalance_timeout)

    def _forget_deadlines(self, member_id: str) -> None:
        self._sessions.pop(member_id, None)
        self._overdue.pop(member_id, None)

    def _late(self, now: float) -> list[ConsumerMember]:
        """Who is to be given up; the next deadline is known afterwards."""
        late = {m for deadlines in (self._sessions, self._overdue) for m, at in deadlines.items() if at <= now}
        left = (at for deadlines in (self._sessions, self._overdue) for at in deadlines.values() if at > now)
        self._wake_at = min(left, default=math.inf)
        return [member for member in self.roster if member.member_id in late]

    # -- what is stored

    def _state(self) -> str:
        if not len(self.roster):
            return "Empty"
        if self.target.group_epoch > self.target.epoch:
            return "Assigning"
        settled = all(m.state is MemberState.STABLE and m.epoch == self.target.epoch for m in self.roster)
        return "Stable" if settled else "Reconciling"

    def snapshot(self) -> SavedConsumerGroup:
        """The group as it is to be stored now."""
        return SavedConsumerGroup(
            self.target.group_epoch,
            self.target.epoch,
            self.target.topics_digest,
            self.state_name,
            sorted(self.subscribed_topics()),
            [save_member(member, self.target.of(member.member_id)) for member in self.roster],
        )

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return self.target.subscribed.union(*(member.topic_names for member in self.roster))

    def restore(self, now: float, record: GroupRecord) -> None:
        """Carry on where the last coordinator stood: the same epochs and assignments, fresh sessions."""
        state = decode(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        self.target.topics_digest, self.target.subscribed = state.topics_digest, frozenset(state.subscribed)
        for saved in state.members:
            self.adopt(now, *load_member(saved))
        self.state_name = self._state()

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self.target.group_epoch = self.target.epoch = generation
        for member in members:
            self.adopt(now, member, member.assigned)
        self.state_name = self._state()
        self._outbox.changed()

    def adopt(self, now: float, member: ConsumerMember, target: Partitions) -> None:
        """A member that is there already, with its part of the target."""
        self.roster.put(member)
        self.target.give(member.member_id, target)
        self._heard_of(now, member)
        if member.state is MemberState.UNREVOKED:
            self._expect(now, member)
