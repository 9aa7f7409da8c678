"""The members of a consumer group with the target assignment: who shall have what, as of one group epoch. Pure.

Place: under group.py, which knows the two protocols that members speak; above ../members/membership.py. Members go
to the target step by step (../members/reconciliation.py).
Invariant: a member that does not act in time (heartbeat, give partitions up, join again) is removed, and its
partitions are free. The group epoch rises when members, subscriptions or subscribed topics change, and when a gate
opens; the target is of the group epoch `epoch`, and is made again only while that is behind. It gives every
partition of a subscribed topic to one member that subscribes to it, except children behind closed gates.
Source: KIP-848 (group epoch, assignment epoch), Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from headrace.agent.groups.consumer.assignors import Apart, Subscriber, assign_apart
from headrace.agent.groups.consumer.conversion import to_classic
from headrace.agent.groups.consumer.members import ConsumerMember, ConsumerRoster
from headrace.agent.groups.consumer.rules import ASSIGNORS, ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.saved import SavedConsumerGroup, decode, load_member, save_member
from headrace.agent.groups.consumer.topics import GroupGates, KnownTopics
from headrace.agent.groups.group_values import Become, GroupEffect
from headrace.agent.groups.members.member import NOTHING, Partitions
from headrace.agent.groups.members.reconciliation import OwnerMembership, TargetParts
from headrace.metastore.api.groups import GroupRecord

_NO_TOPICS: frozenset[int] = frozenset()


class Target(TargetParts):
    """Both epochs, and each member's part."""

    def __init__(self, assignors: tuple[str, ...]) -> None:
        """`assignors`: names of those that members may ask for; the first is the default."""
        super().__init__()
        self.topics_digest = b""
        """Of the subscribed topics, their partition counts, marks and gates, that the group was judged by last."""
        self.subscribed: frozenset[str] = frozenset()
        """Their names."""
        self._assignors = assignors
        self._closed: Partitions = NOTHING

    def forget(self, member_id: str) -> None:
        """Remove a member that left: its part is free, and the target has to be made again."""
        super().forget(member_id)
        self.judged_by = None

    @property
    def is_judged(self) -> bool:
        """Whether the group was judged by any topics since it was loaded and since a member last left."""
        return self.judged_by is not None

    def refresh(self, members: Collection[ConsumerMember], topics: KnownTopics, *, changed: bool) -> bool:
        """Raise the group epoch when a subscription, a subscribed topic or a gate changed; whether it did."""
        if not changed and self.is_judged_by(topics.by_name) and self._closed == topics.closed:
            return False
        subscribed = _NO_TOPICS.union(*_subscriptions(members, topics).values())
        digest = _digest(topics.counts(subscribed), topics.apart(subscribed))
        changed = changed or digest != self.topics_digest
        self.judged_by, self._closed, self.topics_digest = topics.by_name, topics.closed, digest
        self.subscribed = frozenset(topics.by_number[number].name for number in subscribed)
        if changed:
            self.raise_epoch()
        return changed

    def renew(self, members: Collection[ConsumerMember], topics: KnownTopics) -> bool:
        """Make the target of the group epoch unless it is made; whether it was to be made."""
        if self.is_made:
            return False
        subscriptions = _subscriptions(members, topics)
        subscribers = [
            Subscriber(
                m.member_id, m.instance_id, subscriptions[m.topic_names, m.subscription_pattern], self.of(m.member_id)
            )
            for m in members
        ]
        wanted = _NO_TOPICS.union(*subscriptions.values())
        assign = ASSIGNORS[self.assignor(members)]
        self._parts = assign_apart(assign, subscribers, topics.counts(wanted), topics.apart(wanted))
        self.epoch = self.group_epoch
        return True

    def assignor(self, members: Collection[ConsumerMember]) -> str:
        """The one that most members ask for; of equals, the first in the settings' order."""
        votes = Counter(member.assignor for member in members)
        return max(self._assignors, key=lambda name: votes[name])


def _subscriptions(
    members: Collection[ConsumerMember], topics: KnownTopics
) -> dict[tuple[frozenset[str], str], frozenset[int]]:
    """Each different subscription's topics, found once."""
    different = {(member.topic_names, member.subscription_pattern) for member in members}
    return {(names, pattern): topics.of(names, pattern) for names, pattern in different}


def _digest(counts: Mapping[int, int], apart: Apart) -> bytes:
    """The same as of agents that know no marks and gates, as long as there are none. Closed gates are in the counts."""
    text = ",".join(f"{number}:{counts[number]}" for number in sorted(counts))
    text += "".join(f";{number}:{'-'.join(map(str, apart[number]))}" for number in sorted(apart))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class ConsumerGroupMembership(OwnerMembership[ConsumerMember]):
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
        return self.step(
            now,
            member,
            owned,
            lambda partition: self.roster.holder(partition) not in (None, member.member_id),
        )

    def expect_unless_expected(self, now: float, member: ConsumerMember) -> None:
        """Expect it as `expect` does, unless it was asked before: that deadline holds."""
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
            self.adopt_with(now, *load_member(saved))
        self.state_name = self._state()

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self.target.group_epoch = self.target.epoch = generation
        for member in members:
            self.adopt_with(now, member, member.assigned)
        self.state_name = self._state()
        self.outbox.changed()
