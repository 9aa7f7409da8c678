"""The members of a consumer group and its target assignment. Pure.

Place: the part that group.py and classic_members.py share, which know the two protocols that members speak; above
../members/membership.py.
Invariant: a member that does not act in time (heartbeat, give partitions up, join again) is removed, and its partitions
are free.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from headrace.agent.groups.group_values import Become, GroupEffect
from headrace.agent.groups.members.membership import GroupMembership
from headrace.agent.groups.members.partitions import Partitions
from headrace.metastore.api.groups import GroupRecord


class ConsumerGroupMembership(GroupMembership[ConsumerMember]):
    """Roster, target, deadlines and outbox of one group, and the transitions that both protocols share."""

    roster: ConsumerRoster
    target: Target

    def __init__(
        self,
        rules: ConsumerGroupRules,
        topics: Callable[[Iterable[str]], KnownTopics],
        times: Callable[[], GroupTimes],
    ) -> None:
        """`topics` by the patterns that are needed; `times` are the group's own, as configured now."""
        super().__init__(lambda: rules.size_max)
        self.roster = ConsumerRoster()
        self.target = Target(rules.assignors)
        self.gates = GroupGates()
        self._rules = rules
        self._topics = topics
        self._times = times
        self._may_downgrade = False
        """Whether a member left or changed to the classic protocol since the last check: it may have been the last
        member that speaks the consumer protocol."""

    def topics(self, patterns: Iterable[str]) -> KnownTopics:
        """The newest picture, as this group may see it."""
        return self._topics(patterns).behind(self.gates)

    # -- members

    def advance(
        self, now: float, before: ConsumerMember | None, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        """Take the member's new wishes in and bring it one step on; `before`: as it was known, None for a new one."""
        subscribed_as_before = before is not None and before.subscribes_as(member)
        if member is not before and member != before:
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
        if after is not member and after != member:
            self.put(after)
            self._watch_revocation(now, after)
        return after

    def _watch_revocation(self, now: float, member: ConsumerMember) -> None:
        if member.state is MemberState.UNREVOKED:
            self.expect(now, member)
        else:
            self.deadlines.met(member.member_id)

    def expect(self, now: float, member: ConsumerMember) -> None:
        """It has its rebalance timeout, from now on, to do what it was asked to."""
        self.deadlines.expect(now, member.member_id, member.rebalance_timeout)

    def expect_unless_expected(self, now: float, member: ConsumerMember) -> None:
        """The same, unless it was asked before: that deadline holds."""
        self.deadlines.expect_unless_expected(now, member.member_id, member.rebalance_timeout)

    def _session_timeout(self, member: ConsumerMember) -> float:
        return self._times().session_timeout if member.classic is None else member.classic.session_timeout

    def remove(self, member: ConsumerMember) -> None:
        """It left or was given up; what it held is free at once."""
        super().remove(member)
        self._may_downgrade = True
        if not len(self.roster):
            self.gates.forget()

    def may_downgrade(self) -> None:
        """A member speaks the classic protocol from now on."""
        self._may_downgrade = True

    def drain(self) -> list[GroupEffect]:
        """Return what is to be done now; the last thing that this group asks for when it ends as a classic one."""
        if self._may_downgrade and self._ends_as_classic():
            # of the target's epoch: members that have arrived need not fear to be of another generation
            self.outbox.emit(Become(to_classic(self.roster, self.target.epoch, self.topics(())).record()))
            self.outbox.give_up()
        self._may_downgrade = False
        return super().drain()

    def _ends_as_classic(self) -> bool:
        speak_classic = all(member.classic is not None for member in self.roster)
        return len(self.roster) > 0 and speak_classic and self._rules.migration.downgrades and not self.is_dead

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
        return self.target.subscribed | super().subscribed_topics()

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, fresh sessions."""
        state = decode(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        self.target.topics_digest, self.target.subscribed = state.topics_digest, frozenset(state.subscribed)
        self.gates.restore(state.opened)
        for saved in state.members:
            self._adopt_with(now, *load_member(saved))
        self.state_name = self._state()

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self.target.group_epoch = self.target.epoch = generation
        for member in members:
            self._adopt_with(now, member, member.assigned)
        self.state_name = self._state()
        self.outbox.changed()

    def _adopt_with(self, now: float, member: ConsumerMember, target: Partitions) -> None:
        """A member that is there already, with its part of the target."""
        self.adopt(now, member)
        self.target.give(member.member_id, target)
        if member.state is MemberState.UNREVOKED:
            self.expect(now, member)
