"""A topic doubles under groups: heartbeats give children as offsets are committed, also after a failover."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.keys import partition_key
from headrace.metastore.log.records import change_records, split_record
from headrace.metastore.partitions.changes import Expansion, change_count
from headrace.metastore.partitions.topic_partitions import Split
from headrace.storage.errors import UnavailableError
from tests.agent.groups.consumer.test_requests import assigned, heartbeat
from tests.agent.groups.groups_world import GroupsWorld
from tests.agent.groups.test_metrics import sample
from tests.manual_clock import ManualClock
from tests.protocol.embedded_bytes import assignment_bytes, subscription_bytes

pytestmark = pytest.mark.requirement("X5")


class Doubling:
    """Topic `t` with two partitions, and one member of the group `g`."""

    def __init__(self, world: GroupsWorld) -> None:
        self.world = world
        self.epoch = 0
        self.owned: tuple[int, ...] = ()

    @property
    def topic_id(self) -> uuid.UUID:
        return self.world.home.cluster.image.topics_by_name["t"].topic_id

    def key(self, index: int) -> int:
        return partition_key(self.world.home.cluster.image.topics_by_name["t"].topic_number, index)

    async def double(self) -> None:
        topic = self.world.home.cluster.image.topics_by_name["t"]
        count = topic.ordered_partitions.undeleted
        change = change_count(topic.ordered_partitions, 2 * count)
        assert isinstance(change, Expansion)
        self.world.cluster_api.append(*change_records(topic.topic_id, topic.ordered_partitions.initial, change))
        self.world.cluster_api.append(*(split_record(topic.topic_id, p, Split(p + count)) for p in range(count)))
        await self.world.catch_up()

    async def set_boundary(self, parent: int, boundary: int) -> None:
        count = len(self.world.home.cluster.image.topics_by_name["t"].splits)
        self.world.cluster_api.append(split_record(self.topic_id, parent, Split(parent + count, boundary)))
        await self.world.catch_up()

    async def beat(self) -> tuple[int, ...]:
        """Return what the member has after heartbeats until it has what it shall have."""
        await self.world.clock.run(self.world.clock.sleep(1.5))
        for _ in range(3):
            owned = {self.topic_id: self.owned}
            answer = await heartbeat(self.world.home, "m", self.epoch, owned=owned if self.epoch else {})
            given = assigned(answer)
            self.epoch = answer.member_epoch
            if given is not None:
                self.owned = given.get(self.topic_id, ())
        return self.owned

    async def commit(self, index: int, offset: int) -> None:
        self.world.groups.offsets["g"][self.key(index)] = CommittedOffset(self.key(index), offset, -1, "")


@pytest.fixture
async def doubling(fake_clock: ManualClock) -> AsyncIterator[Doubling]:
    world = GroupsWorld(fake_clock)
    await world.start()
    world.cluster_api.add_topic("t", 2)
    await world.catch_up()
    yield Doubling(world)
    await world.stop()


async def test_children_come_one_by_one(doubling: Doubling) -> None:
    assert await doubling.beat() == (0, 1)
    before = doubling.epoch
    await doubling.double()
    assert await doubling.beat() == (0, 1)
    assert doubling.epoch == before, "nothing changed for the group"
    await doubling.commit(0, 5)
    await doubling.set_boundary(0, 6)
    assert await doubling.beat() == (0, 1)
    await doubling.commit(0, 6)
    assert await doubling.beat() == (0, 1, 2)
    assert doubling.epoch > before
    await doubling.set_boundary(1, 7)
    assert await doubling.beat() == (0, 1, 2)
    doubling.world.groups.log_starts[doubling.key(1)] = 7
    assert await doubling.beat() == (0, 1, 2, 3)


async def test_an_open_gate_survives_a_failover_and_an_offset_that_goes_back(doubling: Doubling) -> None:
    await doubling.double()
    await doubling.set_boundary(0, 6)
    await doubling.commit(0, 6)
    assert await doubling.beat() == (0, 1, 2)
    await doubling.commit(0, 3)
    assert await doubling.beat() == (0, 1, 2)
    home = doubling.world.home
    await doubling.world.clock.run(home.cluster.stop())
    await home.requests.close()
    doubling.world.agents.remove(home)
    await doubling.world.catch_up()
    assert await doubling.beat() == (0, 1, 2)


async def test_a_group_without_members_is_judged_again(doubling: Doubling) -> None:
    await doubling.double()
    await doubling.set_boundary(0, 6)
    await doubling.commit(0, 6)
    assert await doubling.beat() == (0, 1, 2)
    assert (await heartbeat(doubling.world.home, "m", -1)).error_code is ErrorCode.none
    doubling.epoch, doubling.owned = 0, ()
    await doubling.commit(0, 0)
    assert await doubling.beat() == (0, 1)
    await doubling.commit(0, 9)
    assert await doubling.beat() == (0, 1, 2)


async def test_a_new_group_skips_what_a_child_had_in_an_earlier_life(doubling: Doubling) -> None:
    """A child that was an alias: its old records are older than what the parent got meanwhile."""
    await doubling.double()
    groups, child = doubling.world.groups, doubling.key(2)
    groups.child_begins[doubling.key(0)] = 40
    await doubling.set_boundary(0, 6)
    assert await doubling.beat() == (0, 1)
    assert child not in groups.offsets["g"]
    await doubling.commit(0, 6)
    groups.fail_before["commit_offsets"] = [UnavailableError("down")] * 3
    assert await doubling.beat() == (0, 1), "not before its offset is stored"
    assert await doubling.beat() == (0, 1, 2)
    assert groups.offsets["g"][child].offset == 40


async def test_a_new_group_reads_parents_first(doubling: Doubling) -> None:
    await doubling.double()
    await doubling.set_boundary(0, 6)
    await doubling.set_boundary(1, 0)
    assert await doubling.beat() == (0, 1, 3), "nothing was in partition 1 when it was split"
    await doubling.commit(0, 6)
    assert await doubling.beat() == (0, 1, 2, 3)


async def test_a_metastore_that_does_not_answer_leaves_gates_closed(doubling: Doubling) -> None:
    assert await doubling.beat() == (0, 1)
    await doubling.double()
    await doubling.commit(0, 6)
    await doubling.set_boundary(0, 6)
    doubling.world.groups.fail_before["parent_positions"] = [UnavailableError("down")] * 3
    assert await doubling.beat() == (0, 1)
    assert await doubling.beat() == (0, 1, 2)


async def test_positions_are_not_asked_for_without_need(doubling: Doubling) -> None:
    await doubling.beat()
    assert doubling.world.groups.calls["parent_positions"] == 0
    await doubling.double()
    await doubling.beat()
    assert doubling.world.groups.calls["parent_positions"] == 0, "no boundary is set"
    await doubling.set_boundary(0, 1)
    await doubling.beat()
    assert doubling.world.groups.calls["parent_positions"] == 1, "once a second"
    await doubling.commit(0, 1)
    await doubling.beat()
    await doubling.beat()
    assert doubling.world.groups.calls["parent_positions"] == 2, "it is open"


async def test_a_group_that_turns_into_a_consumer_group_gives_children_back(doubling: Doubling) -> None:
    """A classic group reads children at once."""
    await doubling.double()
    home = doubling.world.home
    joined = await home.join("g", version=3, metadata=subscription_bytes(["t"], {}))
    given = assignment_bytes({"t": [0, 1, 2, 3]})
    await home.sync("g", joined.member_id, 1, {joined.member_id: given}, version=2)
    assert (await heartbeat(home, "m", 0)).error_code is ErrorCode.none
    held = home.requests.groups.get("g")
    assert held is not None
    assert isinstance(held.group, ConsumerGroup)
    target = held.group.target
    wanted = target.of("m") | target.of(joined.member_id)
    assert wanted == {doubling.key(0), doubling.key(1)}


async def test_late_groups_are_shown(doubling: Doubling) -> None:
    await doubling.double()
    await doubling.set_boundary(0, 6)
    await doubling.beat()
    home = doubling.world.home
    assert sample(home, "headrace_groups_late") == 0
    doubling.world.clock.jump(301)
    assert sample(home, "headrace_groups_late") == 1
    assert (sample(home, "headrace_group_late_seconds", group="g") or 0.0) >= 301
    assert sample(doubling.world.other, "headrace_groups_late") == 0
    await doubling.commit(0, 6)
    await doubling.beat()
    assert sample(home, "headrace_groups_late") == 0
