"""The steps of members that give up before others get."""

from __future__ import annotations

import pytest

from headrace.agent.groups.consumer.members import ConsumerMember
from headrace.agent.groups.members.reconciliation import MemberState, reconcile
from headrace.agent.groups.streams.members import StreamsMember


@pytest.mark.requirement("X16")
@pytest.mark.parametrize("kind", [ConsumerMember, StreamsMember])
def test_what_was_given_up_is_no_longer_its_own_while_it_gives_up_more(
    kind: type[ConsumerMember] | type[StreamsMember],
) -> None:
    """Two targets in a row take something away: a commit under the first epoch counts for what is left only."""

    def step(member: ConsumerMember | StreamsMember, epoch: int, target: set[int], owned: set[int]) -> ConsumerMember:
        more = {"target": frozenset(target), "target_epoch": epoch, "owned": frozenset(owned)}
        after = reconcile(member, **more, held_by_others=lambda key: False)  # type: ignore[arg-type]
        assert isinstance(after, kind)
        return after  # type: ignore[return-value]

    first = step(kind("m"), 1, {1, 2, 3}, set())
    assert first.state is MemberState.STABLE
    assert first.assigned == {1, 2, 3}
    giving = step(first, 2, {2, 3}, {1, 2, 3})
    assert giving.state is MemberState.UNREVOKED
    assert giving.to_revoke == {1}
    more = step(giving, 3, {3}, {2, 3})
    assert (more.epoch, more.state) == (2, MemberState.UNREVOKED)
    assert more.to_revoke == {2}
    assert more.has_had([2, 3], 1), "it has both still"
    assert not more.has_had([1], 1), "another member may have it"
