"""The next step of one member towards its part of the target: a pure function.

Place: called by membership.py on every heartbeat of a member that is not there yet.
Invariant: a partition is added only when no other member holds it, and a partition that the member is to
give up stays with it until it shows that it no longer owns it. So no partition ever has two holders.
Source: KIP-848 (reconciliation), Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.agent.groups.consumer.consumer_values import MemberState
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.members.partitions import NOTHING, Partitions


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: Callable[[int], bool],
) -> ConsumerMember:
    """The member after one step; itself when there is none to take.

    `owned`: what it says it owns, None when it did not say.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.to_revoke:
            return member
        member = member.at_epoch(member.epoch + 1)  # that revocation is done; maybe the target has moved on
    return _step(member, target, target_epoch, owned, held_by_others)


def _step(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: Callable[[int], bool],
) -> ConsumerMember:
    to_revoke = member.assigned - target
    if to_revoke and (owned is None or owned & to_revoke):
        # it keeps its epoch until it has given them up
        return replace(member, state=MemberState.UNREVOKED, assigned=member.assigned & target, to_revoke=to_revoke)
    missing = target - member.assigned
    unreleased = frozenset(key for key in missing if held_by_others(key))
    assigned, at_target = target - unreleased, member.at_epoch(target_epoch)
    return replace(
        at_target,
        state=MemberState.UNRELEASED if unreleased else MemberState.STABLE,
        assigned=assigned,
        to_revoke=NOTHING,
        since=_since(member, assigned, at_target.epoch),
    )


def _since(member: ConsumerMember, assigned: Partitions, epoch: int) -> Mapping[int, int]:
    """Return the epochs with which it got these partitions, the new ones with `epoch`. What was stored by an earlier
    release it has had since its last epoch at least.
    """
    return {key: member.since.get(key, member.epoch) if key in member.assigned else epoch for key in assigned}
