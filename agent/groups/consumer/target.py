"""The target assignment: who shall have what, as of one group epoch.

Place: under membership.py, which says when members change; members go to it step by step (reconcile.py).
Invariant: the group epoch rises when members, subscriptions or subscribed topics
change, and when a gate opens; the target is of the group epoch `epoch`, and is made again only while that is behind. It
gives every partition of a subscribed topic to one member that subscribes to it, except children behind closed gates.
Source: KIP-848 (group epoch, assignment epoch).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping

from headrace.agent.groups.consumer.assignors.apart import Apart, assign_apart
from headrace.agent.groups.consumer.assignors.assignor import Subscriber
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.rules import ASSIGNORS
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.members.epochs import GroupEpochs
from headrace.agent.groups.members.partitions import NOTHING, Partitions

_NO_TOPICS: frozenset[int] = frozenset()


class Target(GroupEpochs):
    """Both epochs, and each member's part."""

    def __init__(self, assignors: tuple[str, ...]) -> None:
        """`assignors`: names of those that members may ask for; the first is the default."""
        super().__init__()
        self.topics_digest = b""
        """Of the subscribed topics, their partition counts, marks and gates, that the group was judged by last."""
        self.subscribed: frozenset[str] = frozenset()
        """Their names."""
        self._assignors = assignors
        self._parts: dict[str, Partitions] = {}
        self._closed: Partitions = NOTHING

    def of(self, member_id: str) -> Partitions:
        """Return what the member shall have."""
        return self._parts.get(member_id, NOTHING)

    def give(self, member_id: str, partitions: Partitions) -> None:
        """Set a member's part from outside: when it is restored or converted."""
        self._parts[member_id] = partitions

    def rename(self, member_id: str, successor_id: str) -> None:
        """Give the part of a static member to the member id under which it came back."""
        self._parts[successor_id] = self._parts.pop(member_id, NOTHING)

    def forget(self, member_id: str) -> None:
        """Remove a member that left: its part is free, and the target has to be made again."""
        self._parts.pop(member_id, None)
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
