"""What a kind of group gets from agent/groups/members: here the smallest kind, which assigns nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import Abandon, GroupEffect, MemberRef, Reply, Save
from headrace.agent.groups.members.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    GroupMember,
    MemberHeartbeat,
    MemberHeartbeatAnswer,
)
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.agent.groups.members.membership import GroupEpochs, GroupMembership, MemberRoster
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.image import MetadataImage

SESSION_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Member(GroupMember[MemberHeartbeat]):
    pass


class Saved:
    """What the group had when it was saved."""

    def __init__(self, members: Collection[Member]) -> None:
        self.members = list(members)

    def record(self) -> GroupRecord:
        return GroupRecord(GroupKind.CONSUMER, "Stable", "smallest", (), b"")


class SmallestMembership(GroupMembership[Member]):
    def __init__(self) -> None:
        super().__init__(lambda: 2)
        self.roster = MemberRoster[Member]()
        self.target = GroupEpochs()

    def snapshot(self) -> Saved:
        return Saved(self.roster)

    def restore(self, now: float, record: GroupRecord) -> None:
        """Nothing is stored."""

    def _session_timeout(self, member: Member) -> float:
        return SESSION_SECONDS

    def _state(self) -> str:
        return "Stable" if len(self.roster) else "Empty"


class SmallestGroup(MemberGroup[Member, MemberHeartbeat]):
    kind = GroupKind.CONSUMER
    protocol_type: str | None = "smallest"

    def __init__(self) -> None:
        super().__init__("g", SmallestMembership())

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        return ErrorCode.none

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        return ErrorCode.none

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        return []

    def _new_member(self, member_id: str) -> Member:
        return Member(member_id)

    def _advance(self, now: float, known: Member | None, wishes: Member, request: MemberHeartbeat) -> Member:
        if known is None:
            self.target.raise_epoch()
            self.target.epoch = self.target.group_epoch
        after = wishes.at_epoch(self.target.epoch)
        if after != known:
            self._membership.put(after)
        return after

    def _shows_its_epoch(self, member: Member, request: MemberHeartbeat) -> bool:
        return request.member_epoch == member.epoch

    def _has_news(self, known: Member | None, member: Member, request: MemberHeartbeat) -> bool:
        return False


class Driver:
    """One group, with saves that are stored at once."""

    def __init__(self) -> None:
        self.group, self.saves = SmallestGroup(), list[Saved]()

    def beat(
        self, member_id: str, epoch: int, instance_id: str | None = None, now: float = 0.0
    ) -> MemberHeartbeatAnswer:
        effects = self.group.member_heartbeat(now, MemberHeartbeat(member_id, epoch, instance_id), "token")
        for effect in effects:
            if isinstance(effect, Save):
                assert isinstance(effect.state, Saved)
                self.saves.append(effect.state)
                effects += self.group.saved(now, effect.revision, ErrorCode.none)
        (answer,) = (effect.answer for effect in effects if isinstance(effect, Reply))
        assert isinstance(answer, MemberHeartbeatAnswer)
        return answer


def test_a_heartbeat_is_judged_in_kafkas_order() -> None:
    driver = Driver()
    assert driver.beat("a", 3).code is ErrorCode.unknown_member_id
    assert driver.beat("a", LEAVE_EPOCH).code is ErrorCode.unknown_member_id
    assert driver.beat("a", JOIN_EPOCH).member_epoch == 1
    assert driver.beat("b", JOIN_EPOCH).member_epoch == 2
    assert driver.beat("c", JOIN_EPOCH).code is ErrorCode.group_max_size_reached
    assert driver.beat("c", 3).code is ErrorCode.unknown_member_id, "also of a full group"
    assert driver.beat("a", 7).code is ErrorCode.fenced_member_epoch
    assert driver.beat("a", 1).member_epoch == 2
    assert (driver.beat("a", LEAVE_EPOCH).member_epoch, driver.group.state_name) == (LEAVE_EPOCH, "Stable")


def test_a_static_member_leaves_for_a_while_and_comes_back_as_another_process() -> None:
    driver = Driver()
    assert driver.beat("a", JOIN_EPOCH, "i").code is ErrorCode.none
    assert driver.beat("b", JOIN_EPOCH, "i").code is ErrorCode.unreleased_instance_id
    assert driver.beat("b", 1, "i").code is ErrorCode.fenced_instance_id
    assert driver.beat("b", LEAVE_FOR_A_WHILE_EPOCH, "i").code is ErrorCode.fenced_instance_id
    assert driver.beat("a", LEAVE_FOR_A_WHILE_EPOCH, "i").member_epoch == LEAVE_FOR_A_WHILE_EPOCH
    assert driver.beat("b", JOIN_EPOCH, "i").member_epoch == 1
    assert [member.member_id for member in driver.group.roster] == ["b"]


def test_a_heartbeat_that_changes_nothing_stores_nothing() -> None:
    driver = Driver()
    driver.beat("a", JOIN_EPOCH)
    assert len(driver.saves) == 1
    driver.beat("a", 1)
    assert len(driver.saves) == 1


def test_late_members_are_given_up() -> None:
    driver = Driver()
    driver.beat("a", JOIN_EPOCH)
    driver.beat("b", JOIN_EPOCH, now=4.0)
    assert driver.group.next_deadline() == SESSION_SECONDS
    driver.group.tick(SESSION_SECONDS)
    assert [member.member_id for member in driver.group.roster] == ["b"]
    assert driver.group.next_deadline() == 4.0 + SESSION_SECONDS
    driver.group.tick(4.0 + SESSION_SECONDS)
    assert driver.group.is_idle()
    assert driver.group.next_deadline() is None


@pytest.mark.parametrize("code", [ErrorCode.coordinator_not_available, ErrorCode.not_coordinator])
def test_what_may_not_be_stored_is_not_answered(code: ErrorCode) -> None:
    driver = Driver()
    (save,) = driver.group.member_heartbeat(0.0, MemberHeartbeat("a", JOIN_EPOCH), "token")
    assert isinstance(save, Save)
    refused, abandon = driver.group.saved(0.0, save.revision, code)
    assert refused == Reply("token", MemberHeartbeatAnswer(code, "a"))
    assert isinstance(abandon, Abandon)
    assert driver.beat("a", JOIN_EPOCH).code is ErrorCode.not_coordinator


def test_epochs_begin_at_the_floor_of_the_claim() -> None:
    driver = Driver()
    driver.group.epochs_from(1 << 20)
    assert driver.beat("a", JOIN_EPOCH).member_epoch == 1 << 20


def test_it_has_no_members_of_the_classic_protocol() -> None:
    assert SmallestGroup().classic_protocol is None
