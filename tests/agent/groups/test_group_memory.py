"""What the groups of an agent use is bounded, and no client keeps another's members out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.groups import group_memory, held_groups
from headrace.agent.groups.consumer.topics import is_valid
from headrace.agent.groups.group_memory import (
    GROUP_BYTES,
    NO_ADDRESS,
    PROMISED_BYTES,
    GroupMemory,
    MeasuredGroups,
    group_bytes,
    sizes_of_group,
)
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.limits.metrics import limits_reached
from headrace.config.patterns import PATTERN_CHARACTERS_MAX, compile_pattern
from tests.agent.client_calls import call
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X7")
KIB, MIB = 1024, 1024 * 1024


def _memory(total: int = 100 * KIB, member: int = 20 * KIB) -> GroupMemory:
    return GroupMemory(total, member, limits_reached(CollectorRegistry()))


def test_one_address_uses_at_most_half() -> None:
    memory = _memory()
    assert [memory.refuse("g", "/a", 10 * KIB) for _ in range(5)] == [ErrorCode.none] * 5
    assert memory.refuse("g", "/a", 10 * KIB) is ErrorCode.group_max_size_reached
    assert [memory.refuse("g", "/b", 10 * KIB) for _ in range(5)] == [ErrorCode.none] * 5
    assert memory.refuse("g", "/c", 10 * KIB) is ErrorCode.group_max_size_reached


def test_a_member_that_is_as_large_as_before_is_never_refused() -> None:
    memory = _memory()
    while memory.refuse("g", "/a", 10 * KIB) is ErrorCode.none:
        pass
    assert memory.refuse("g", "/a", 10 * KIB, before=10 * KIB) is ErrorCode.none
    assert memory.refuse("g", "/a", 10 * KIB + 1, before=10 * KIB) is ErrorCode.group_max_size_reached


def test_a_subscription_beyond_its_limit_is_refused() -> None:
    assert _memory().refuse("g", "/a", 21 * KIB) is ErrorCode.invalid_request


@given(st.lists(st.tuples(st.sampled_from("gh"), st.dictionaries(st.sampled_from("abc"), st.integers(1, 99)))))
def test_what_was_measured_last_counts(history: list[tuple[str, dict[str, int]]]) -> None:
    memory, last = _memory(), dict[str, dict[str, int]]()
    for group_id, sizes in history:
        memory.measured(group_id, sizes)
        last[group_id] = sizes
    assert memory.in_use_bytes == sum(sum(sizes.values()) for sizes in last.values())
    for group_id in last:
        memory.measured(group_id, {})
    assert memory.in_use_bytes == 0
    assert not memory._by_address


def test_a_group_is_counted_for_a_client_that_has_a_member_in_it() -> None:
    own = group_bytes("g")
    assert own == GROUP_BYTES + text_bytes("g")
    assert sizes_of_group(own, []) == {NO_ADDRESS: own}
    assert sizes_of_group(own, [("/a", 100), ("/b", 50), ("/a", 1)]) == {"/a": own + 101, "/b": 50}
    memory = _memory()
    for number in range(1_000):
        memory.measured(f"g-{number}", sizes_of_group(group_bytes(f"g-{number}"), []))
    assert memory.in_use_bytes == 0, "groups without members have another limit"
    assert memory.idle_bytes == sum(group_bytes(f"g-{number}") for number in range(1_000))
    assert memory.refuse("g", "/a", 10 * KIB) is ErrorCode.none


async def test_member_ids_that_are_asked_for_and_not_used_are_counted(
    world: GroupsWorld, fake_clock: ManualClock
) -> None:
    group = _of(world, world.home)
    memory = world.home.requests.groups.memory
    for _ in range(100):
        assert (await world.home.join(group, version=5)).error_code == ErrorCode.member_id_required
    await fake_clock.advance(0.1)
    assert memory.in_use_bytes >= 100 * PROMISED_BYTES
    await fake_clock.advance(120)
    assert memory.in_use_bytes == 0


async def test_large_subscriptions_are_refused_and_others_join(world: GroupsWorld, fake_clock: ManualClock) -> None:
    too_large = await world.home.join("g", version=3, metadata=bytes(2 * MIB))
    assert too_large.error_code == ErrorCode.invalid_request
    groups = [f"g-{number}" for number in range(200)]
    mine = [group for group in groups if world.coordinator(group) is world.home][:70]
    assert len(mine) == 70
    answers = [(await world.home.join(group, version=3, metadata=bytes(MIB - 4 * KIB))).error_code for group in mine]
    assert answers.count(0) == 31, "half of group.memory.bytes, for one address"
    assert set(answers) == {0, ErrorCode.group_max_size_reached}
    memory = world.home.requests.groups.memory
    assert 31 * MIB < memory.in_use_bytes < 32 * MIB
    await fake_clock.advance(1)
    assert 31 * MIB < memory.in_use_bytes < 32 * MIB, "as it was measured"
    assert (await world.other.join(_of(world, world.other), version=3)).error_code == 0
    await fake_clock.advance(60)
    assert memory.in_use_bytes < MIB, "members that went away give it back"


def _of(world: GroupsWorld, agent: Coordinating) -> str:
    return next(f"h-{number}" for number in range(99) if world.coordinator(f"h-{number}") is agent)


async def test_requests_about_thousands_of_unknown_groups_claim_none(world: GroupsWorld) -> None:
    message = DescribeGroupsRequest(groups=[f"no-such-{number}" for number in range(5_000)])
    answer = await call(world.home.handlers[15], message, 5)
    assert len(answer.groups) == 5_000
    assert {group.error_code for group in answer.groups} == {0, ErrorCode.not_coordinator}
    deletion = DeleteGroupsRequest(groups_names=[f"no-such-{number}" for number in range(5_000)])
    assert len((await call(world.home.handlers[42], deletion, 1)).results) == 5_000
    assert world.groups.calls["claim_group"] == 0


def test_a_pattern_has_no_groups_and_a_largest_length() -> None:
    """Each pair of parentheses of a pattern with groups costs memory that its limit does not count."""
    assert is_valid("(" * 500 + ")" * 500)
    assert compile_pattern("(a)" * 1_000).groups == 0
    assert is_valid("a" * PATTERN_CHARACTERS_MAX)
    assert not is_valid("a" * (PATTERN_CHARACTERS_MAX + 1))


def _mine(world: GroupsWorld, count: int) -> list[str]:
    names = (f"n-{number}" for number in range(10 * count))
    return [name for name in names if world.coordinator(name) is world.home][:count]


async def test_groups_without_members_are_released_beyond_a_number(
    world: GroupsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_groups, "GROUPS_MAX", 20)
    monkeypatch.setattr(held_groups, "RELEASED_AT_ONCE", 5)
    groups, (joined, *others) = world.home.requests.groups, _mine(world, 60)
    assert (await world.home.join(joined, version=3)).error_code == 0
    for name in others:
        await groups.find(name)
        assert len(list(groups)) <= 20
    assert groups.get(joined) is not None, "a group with a member stays"
    assert groups.get(others[-1]) is not None
    assert groups.get(others[0]) is None


async def test_groups_without_members_are_released_beyond_their_bytes(
    world: GroupsWorld, monkeypatch: pytest.MonkeyPatch, fake_clock: ManualClock
) -> None:
    monkeypatch.setattr(held_groups, "IDLE_GROUPS_BYTES", 20 * (GROUP_BYTES + 300))
    monkeypatch.setattr(held_groups, "RELEASED_AT_ONCE", 5)
    groups = world.home.requests.groups
    for name in _mine(world, 60):
        await groups.find(name)
        await fake_clock.advance(held_groups.TICK_SECONDS)
        assert groups.memory.idle_bytes <= 21 * (GROUP_BYTES + 300)
    assert 10 < len(list(groups)) < 25


async def test_one_turn_of_the_loop_measures_a_part_of_the_groups(
    world: GroupsWorld, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_memory, "MEASURED_AT_ONCE", 3)
    groups = world.home.requests.groups
    for name in _mine(world, 10):
        await groups.find(name)
    waiting = [len(groups.measured.changed)]
    while waiting[-1]:
        await fake_clock.advance(held_groups.TICK_SECONDS)
        waiting.append(len(groups.measured.changed))
    assert waiting[0] == 10
    assert all(before - after <= 3 for before, after in pairwise(waiting))


def test_groups_that_only_heartbeat_are_measured_one_at_a_time() -> None:
    memory = _memory()
    groups, found = MeasuredGroups(memory), list[str]()

    def sizes(group_id: str) -> dict[str, int]:
        found.append(group_id)
        return {"a": 100}

    for _ in range(5):
        for number in range(10):
            groups.note(f"g-{number}", is_same=True)
    groups.note("g-7", is_same=False)
    groups.measure(sizes)
    assert found == ["g-7", "g-0"], "what changed, and one more"
    for _ in range(20):
        groups.measure(sizes)
    assert sorted(found[2:]) == [f"g-{number}" for number in range(1, 10)], "each in its turn, once"
    assert memory.in_use_bytes == 1_000
