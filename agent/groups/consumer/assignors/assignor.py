"""What every server-side assignor is given and gives back.

Place: under target.py, which calls the one that most members ask for.
Invariant: pure and deterministic: the same members, topics and earlier target give the same answer,
whichever agent computes it. Every partition of a subscribed topic goes to exactly one subscriber.
Source: KIP-848 (server-side assignors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.agent.groups.members.partitions import NOTHING, Partitions
from headrace.metastore.keys import partition_key


class Subscriber(NamedTuple):
    """A member as an assignor sees it; `had` is its part of the last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[int]
    """Topic numbers."""
    had: Partitions = NOTHING


Assignor = Callable[[Sequence[Subscriber], Mapping[int, int]], dict[str, Partitions]]
"""(members, topic number -> partition count) -> member id -> its partitions; every member is in it."""


def partitions_of(topics: Mapping[int, int]) -> list[int]:
    """Every partition key, topic by topic in order."""
    firsts = [(partition_key(number, 0), topics[number]) for number in sorted(topics)]
    return [key for first, count in firsts for key in range(first, first + count)]  # neighbours have neighbouring keys
