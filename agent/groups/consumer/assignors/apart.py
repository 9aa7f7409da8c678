"""A topic's usual partitions and those apart, each assigned evenly by itself.

Place: under target.py, around the assignor that the members ask for.
Why: a partition that is marked for deletion gets no new records. A member with many of them, and few of the others,
would have little to do. And of a topic that doubles, some children may be read and others not yet (gates.py).
Invariant: each assignment is the assignor's own. Assignors see partitions without gaps: those apart of a
topic are numbered from 0 for them.
Source: KIP-253, change 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.groups.consumer.assignors.assignor import Assignor, Subscriber
from headrace.agent.groups.members.partitions import Partitions
from headrace.metastore.keys import partition_key

Apart = Mapping[int, Sequence[int]]
"""Topic number -> indexes of its partitions that are apart, ascending; topics without any are left out."""


def assign_apart(
    assign: Assignor, members: Sequence[Subscriber], topics: Mapping[int, int], apart: Apart
) -> dict[str, Partitions]:
    """`topics`: topic number -> how many partitions are not apart, from index 0 on."""
    live = assign(members, topics)
    if not apart:
        return live
    actual = {
        partition_key(number, place): partition_key(number, index)
        for number, indexes in apart.items()
        for place, index in enumerate(indexes)
    }
    place_of = {key: place for place, key in actual.items()}
    renumbered = [
        member._replace(had=frozenset(place_of[key] for key in member.had if key in place_of)) for member in members
    ]
    others = assign(_on(apart, renumbered), {number: len(indexes) for number, indexes in apart.items()})
    return {
        member_id: partitions | {actual[place] for place in others.get(member_id, ())}
        for member_id, partitions in live.items()
    }


def _on(apart: Apart, members: Sequence[Subscriber]) -> list[Subscriber]:
    return [member._replace(topics=member.topics & apart.keys()) for member in members]
