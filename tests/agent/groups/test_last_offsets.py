"""X14: before a group that a link names gets its first member here, its last offsets are copied once more."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.claims import NewGroups
from headrace.agent.groups.group_memory import SAVES_AT_ONCE
from headrace.agent.groups.last_offsets import WAIT_SECONDS
from headrace.config.link_configs import LINK_RESOURCE
from headrace.metastore.api.linked_groups import LastOffsets
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.storage.errors import UnavailableError
from tests.agent.groups.consumer.test_requests import heartbeat
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.manual_clock import ManualClock
from tests.patch import Patch

WORLD_TOPICS = {"t": 4}
pytestmark = pytest.mark.requirement("X14")


class Links:
    """What the metastore says of linked groups; a test answers for the worker."""

    def __init__(self, world: GroupsWorld) -> None:
        self.world = world
        self.answer: LastOffsets = LastOffsets.DONE
        self.is_away = False
        self.asked: list[tuple[list[str], str]] = []
        self.saved_when_asked: list[bool] = []
        for call in (self.ask_last_offsets, self.last_offsets):
            setattr(world.groups, call.__name__, call)

    async def ask_last_offsets(self, links: list[str], group_id: str) -> bool:
        if self.is_away:
            raise UnavailableError("planned")
        self.asked.append((list(links), group_id))
        group = self.world.groups.groups.get(group_id)
        record = None if group is None else group.record
        self.saved_when_asked.append(record is not None and record.state != "Empty")
        return True

    async def last_offsets(self, group_id: str) -> LastOffsets:
        return self.answer


async def add_link(world: GroupsWorld, name: str = "old", **configs: str) -> None:
    """Add a link. In names of configs, __ means a point."""
    given = {"bootstrap.servers": "kafka:9092", "topics": ".*"} | {k.replace("__", "."): v for k, v in configs.items()}
    world.cluster_api.append(
        *(
            ConfigRecord(resource_type=LINK_RESOURCE, resource_name=name, name=key, value=value)
            for key, value in given.items()
        )
    )
    await world.catch_up()


@pytest.fixture
async def links(world: GroupsWorld) -> Links:
    await add_link(world, groups="g.*", groups__exclude="g-own")
    return Links(world)


def outcomes(agent: Coordinating) -> dict[str, float]:
    """Return how often groups were asked for, by outcome."""
    name = "headrace_group_last_offsets_total"
    found = {each: agent.registry.get_sample_value(name, {"outcome": each}) for each in ("copied", "older", "refused")}
    return {each: count for each, count in found.items() if count}


async def test_no_member_is_stored_before_the_last_offsets_are_copied(
    world: GroupsWorld, home: Coordinating, links: Links, fake_clock: ManualClock
) -> None:
    links.answer = LastOffsets.OLDER
    joining = asyncio.ensure_future(home.only_member())
    await fake_clock.advance(1.0)
    assert links.asked == [(["old"], "g")]
    assert not joining.done()
    record = world.groups.groups["g"].record
    assert record is None or record.state == "Empty", "from then on no link would write"
    links.answer = LastOffsets.DONE
    await fake_clock.advance(1.0)
    member = await joining
    assert await home.heartbeat("g", member, 1) == ErrorCode.none
    assert (links.saved_when_asked, outcomes(home)) == ([False], {"copied": 1})


async def test_it_is_asked_once_until_the_group_is_empty_again(home: Coordinating, links: Links) -> None:
    member = await home.only_member()
    joined = await home.join("g", member)
    await home.sync("g", member, joined.generation_id, {member: b"all"})
    assert len(links.asked) == 1
    await home.leave("g", member)
    joined = await home.join("g", version=3)
    await home.sync("g", joined.member_id, joined.generation_id, {joined.member_id: b"all"})
    assert len(links.asked) == 2


async def test_a_worker_that_does_not_answer_leaves_the_offsets_of_an_earlier_copy(
    home: Coordinating, links: Links, fake_clock: ManualClock
) -> None:
    links.answer = LastOffsets.OLDER
    joining = asyncio.ensure_future(home.only_member())
    await fake_clock.advance(WAIT_SECONDS + 1)
    await joining
    assert outcomes(home) == {"older": 1}


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_group_of_which_nothing_was_copied_does_not_begin(
    home: Coordinating, links: Links, fake_clock: ManualClock, is_away: bool
) -> None:
    links.answer, links.is_away = LastOffsets.NONE, is_away
    joined = await home.join("g", version=3)
    syncing = asyncio.ensure_future(home.sync("g", joined.member_id, 1, {joined.member_id: b"all"}))
    await fake_clock.advance(1.0 if is_away else 2 * WAIT_SECONDS + 1)
    assert (await syncing).error_code == ErrorCode.coordinator_load_in_progress
    assert "refused" in outcomes(home)
    links.answer, links.is_away = LastOffsets.DONE, False
    joined = await home.join("g", joined.member_id, version=3)
    synced = await home.sync("g", joined.member_id, joined.generation_id, {joined.member_id: b"all"})
    assert (synced.error_code, synced.assignment) == (0, b"all")


async def test_groups_that_no_link_names_are_not_asked_for(
    world: GroupsWorld, home: Coordinating, links: Links
) -> None:
    own = next(name for name in ("a", "b", "c", "d", "e", "f") if world.coordinator(name) is home)
    await home.only_member(own)
    await add_link(world, link__state="paused", groups="g.*")
    await home.only_member()
    assert links.asked == []


async def test_members_of_the_new_protocol_wait_too(home: Coordinating, links: Links, fake_clock: ManualClock) -> None:
    links.answer = LastOffsets.OLDER
    joining = asyncio.ensure_future(heartbeat(home, member_id="m", epoch=0, topics=["t"]))
    await fake_clock.advance(1.0)
    assert not joining.done()
    links.answer = LastOffsets.DONE
    await fake_clock.advance(1.0)
    assert (await joining).error_code == ErrorCode.none
    assert links.saved_when_asked == [False]


async def test_a_group_that_does_not_wait_is_found(
    world: GroupsWorld, home: Coordinating, links: Links, fake_clock: ManualClock, patch: Patch
) -> None:
    """The planted bug: members first, then the last offsets."""

    async def at_once(self: NewGroups, group_id: str) -> ErrorCode:
        return ErrorCode.none

    patch.replace(NewGroups, "may_have_members", at_once)
    with pytest.raises(AssertionError):
        await test_no_member_is_stored_before_the_last_offsets_are_copied(world, home, links, fake_clock)


async def test_groups_that_wait_for_a_link_hold_up_no_other(
    world: GroupsWorld, home: Coordinating, links: Links, fake_clock: ManualClock
) -> None:
    """Else a source that is slow would stop what the coordinator stores of all groups."""
    links.answer = LastOffsets.OLDER
    holders = {name: world.coordinator(name) for name in (f"g{number}" for number in range(8 * SAVES_AT_ONCE))}
    waiting = [name for name, holder in holders.items() if holder is home][: SAVES_AT_ONCE + 1]
    assert len(waiting) > SAVES_AT_ONCE
    joining = [asyncio.ensure_future(home.only_member(name)) for name in waiting]
    await fake_clock.advance(1.0)
    assert len(links.asked) == len(waiting)
    own = next(name for name in ("a", "b", "c", "d", "e", "f") if world.coordinator(name) is home)
    await asyncio.wait_for(home.only_member(own), 10.0)
    assert not any(each.done() for each in joining)
    links.answer = LastOffsets.DONE
    await fake_clock.advance(1.0)
    await asyncio.gather(*joining)
