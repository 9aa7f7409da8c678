"""The members of a consumer group and its target assignment: members come, step on, and go. Pure.

Place: the part that group.py and classic_members.py share, which know the two protocols that members speak.
Invariant: a member that does not act in time (heartbeat, give partitions up, join again) is removed, and its partitions
are free; held_groups.py wakes the group at the next deadline. Every change is marked in the outbox, so no answer
precedes its save.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.assignors.assignor import NOTHING, Partitions
from headrace.agent.groups.consumer.consumer_values import MemberState
from headrace.agent.groups.consumer.conversion import to_classic
from headrace.agent.groups.consumer.gates import GroupGates
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.reconcile import reconcile
from headrace.agent.groups.consumer.roster import ConsumerRoster
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.saved import SavedConsumerGroup, decode, load_member, save_member
from headrace.agent.groups.consumer.target import Target
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import Become, GroupEffect, MemberRef
from headrace.agent.groups.outbox import Outbox
from headrace.metastore.api.groups import GroupRecord


class MemberDeadlines:
    """Times are seconds of the clock's monotonic()."""

    def __init__(self, times: Callable[[], GroupTimes]) -> None:
        """`times` are the group's own, as configured now."""
        self._times = times
        self._sessions: dict[str, float] = {}
        """Member id -> when it is given up unless it is learned of."""
        self._overdue: dict[str, float] = {}
        """Member id -> when it is given up unless it does what it was asked to: give partitions up, join or sync."""
        self._wake_at = math.inf
        """No deadline is earlier than this."""

    def heard_of(self, now: float, member: ConsumerMember) -> None:
        """Its session starts again."""
        timeout = self._times().session_timeout if member.classic is None else member.classic.session_timeout
        self._sessions[member.member_id] = now + timeout
        self._wake_at = min(self._wake_at, now + timeout)

    def expect(self, now: float, member: ConsumerMember) -> None:
        """It has its rebalance timeout, from now on, to do what it was asked to."""
        self._overdue[member.member_id] = now + member.rebalance_timeout
        self._wake_at = min(self._wake_at, now + member.rebalance_timeout)

    def expect_unless_expected(self, now: float, member: ConsumerMember) -> None:
        """The same, unless it was asked before: that deadline holds."""
        if member.member_id not in self._overdue:
            self.expect(now, member)

    def met(self, member_id: str) -> None:
        """It did what it was asked to; its session still runs."""
        self._overdue.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """It is no member any more."""
        self._sessions.pop(member_id, None)
        self._overdue.pop(member_id, None)

    def late(self, now: float) -> set[str]:
        """Ids of the members to be given up; the next deadline is known afterwards."""
        late = {m for deadlines in (self._sessions, self._overdue) for m, at in deadlines.items() if at <= now}
        left = (at for deadlines in (self._sessions, self._overdue) for at in deadlines.values() if at > now)
        self._wake_at = min(left, default=math.inf)
        return late

    @property
    def next(self) -> float | None:
        """No deadline is earlier; None while there is none."""
        return self._wake_at if self._sessions or self._overdue else None


class GroupMembership:
    """Roster, target, deadlines and outbox of one group, and the transitions that both protocols share."""

    def __init__(
        self,
        rules: ConsumerGroupRules,
        topics: Callable[[Iterable[str]], KnownTopics],
        times: Callable[[], GroupTimes],
    ) -> None:
        """`topics` by the patterns that are needed; `times` are the group's own, as configured now."""
        self.roster = ConsumerRoster()
        self.target = Target(rules.assignors)
        self.gates = GroupGates()
        self.is_dead = False
        self.state_name = "Empty"
        """Kafka's name of the state. Kept, not looked up: metrics read it from another thread."""
        self._rules = rules
        self._topics = topics
        self.outbox = Outbox(self.snapshot)
        self.deadlines = MemberDeadlines(times)
        self._may_downgrade = False
        """A member went, or speaks the classic protocol now: maybe it was the last that spoke the consumer protocol."""

    def topics(self, patterns: Iterable[str]) -> KnownTopics:
        """The newest picture, as this group may see it."""
        return self._topics(patterns).behind(self.gates)

    # -- members

    def advance(
        self, now: float, before: ConsumerMember | None, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        """Take the member's new wishes in and bring it one step on; `before`: as it was known, None for a new one."""
        subscribed_as_before = before is not None and before.subscribes_as(member)
        if before is None or member != before:
            self.put(member)
        topics = self.topics(self.roster.patterns)
        if self.target.refresh(self.roster, topics, changed=not subscribed_as_before):
            self.outbox.changed()
        if self.target.renew(self.roster, topics):
            self.outbox.changed()
        after = reconcile(
            member,
            target=self.target.of(member.member_id),
            target_epoch=self.target.epoch,
            owned=owned,
            held_by_others=lambda partition: self.roster.holder(partition) not in (None, member.member_id),
        )
        if after != member:
            self.put(after)
            self._watch_revocation(now, after)
        return after

    def _watch_revocation(self, now: float, member: ConsumerMember) -> None:
        if member.state is MemberState.UNREVOKED:
            self.deadlines.expect(now, member)
        else:
            self.deadlines.met(member.member_id)

    def put(self, member: ConsumerMember) -> None:
        """Add the member, or replace what was known of it."""
        self.roster.put(member)
        self.outbox.changed()

    def take_over(self, static: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member came back, maybe as another process: its instance's share is its own again."""
        returned = replace(
            static, member_id=member_id, epoch=0, previous_epoch=0, state=MemberState.STABLE, to_revoke=NOTHING
        )
        if member_id != static.member_id:
            self.roster.remove(static)
            self.target.rename(static.member_id, member_id)
            self.deadlines.forget(static.member_id)
        self.put(returned)
        return returned

    def remove(self, member: ConsumerMember) -> None:
        """It left or was given up; what it held is free at once."""
        self.roster.remove(member)
        self.target.forget(member.member_id)
        self.deadlines.forget(member.member_id)
        self.outbox.changed()
        self._may_downgrade = True
        if not len(self.roster):
            self.gates.forget()

    def may_downgrade(self) -> None:
        """A member speaks the classic protocol from now on."""
        self._may_downgrade = True

    def named(self, ref: MemberRef) -> ConsumerMember | ErrorCode:
        """The member that a request names, or why it is refused."""
        if self.is_dead:
            return ErrorCode.not_coordinator
        if ref.instance_id is not None:
            static = self.roster.static_member(ref.instance_id)
            if static is None:
                return ErrorCode.unknown_member_id
            return static if static.member_id == ref.member_id else ErrorCode.fenced_instance_id
        return self.roster.get(ref.member_id) or ErrorCode.unknown_member_id

    def remove_late(self, now: float) -> None:
        """Give up the members that missed a deadline."""
        late = self.deadlines.late(now)
        for member in [member for member in self.roster if member.member_id in late]:
            self.remove(member)

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Refuse with `code` what waits; store nothing any more."""
        self.is_dead, self.state_name = True, "Dead"
        self.outbox.refuse_all(code)
        self.outbox.give_up()
        return self.drain()

    def drain(self) -> list[GroupEffect]:
        """Return what is to be done now; the last thing that this group asks for when it ends as a classic one."""
        if self._may_downgrade and self._ends_as_classic():
            # of the target's epoch: members that have arrived need not fear to be of another generation
            self.outbox.emit(Become(to_classic(self.roster, self.target.epoch, self.topics(())).record()))
            self.outbox.give_up()
        self._may_downgrade = False
        if self.outbox.has_news and not self.is_dead:
            self.state_name = self._state()
        return self.outbox.drain()

    def _ends_as_classic(self) -> bool:
        speak_classic = all(member.classic is not None for member in self.roster)
        return len(self.roster) > 0 and speak_classic and self._rules.migration.downgrades and not self.is_dead

    def is_full(self) -> bool:
        """Return whether no member more is let in."""
        return len(self.roster) >= self._rules.size_max

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
            opened=self.gates.saved(self._topics(()).all_gates()),
        )

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return self.target.subscribed.union(*(member.topic_names for member in self.roster))

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, fresh sessions."""
        state = decode(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        self.target.topics_digest, self.target.subscribed = state.topics_digest, frozenset(state.subscribed)
        self.gates.restore(state.opened)
        for saved in state.members:
            self.adopt(now, *load_member(saved))
        self.state_name = self._state()

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self.target.group_epoch = self.target.epoch = generation
        for member in members:
            self.adopt(now, member, member.assigned)
        self.state_name = self._state()
        self.outbox.changed()

    def adopt(self, now: float, member: ConsumerMember, target: Partitions) -> None:
        """A member that is there already, with its part of the target."""
        self.roster.put(member)
        self.target.give(member.member_id, target)
        self.deadlines.heard_of(now, member)
        if member.state is MemberState.UNREVOKED:
            self.deadlines.expect(now, member)
