"""Counts in both directions, asked for by CreatePartitions and by our request; and the controller's removals."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin import CreatePartitionsRequest, DescribeTopicPartitionsRequest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.counts.count_changes import CreatePartitions, PartitionCounts, SetPartitionCount, WantedCount
from headrace.agent.topics.metadata.described_topics import DescribeTopicPartitions
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.protocol.own_requests import (
    SET_PARTITION_COUNT_KEY,
    CountRequest,
    CountResponse,
    decode_count_response,
    encode_count_request,
)
from headrace.protocol.request import CloseConnection
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import a_request, call
from tests.agent.cluster.candidate import Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

HEADER_BYTES = 4 + 8 + 2


class World:
    """One agent's handlers, and a topic of two partitions in a cluster of format 4."""

    def __init__(self, clock: ManualClock, level: int = 4) -> None:
        self.api = FakeClusterApi(clock)
        self.api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=level))
        self.topic_id = self.api.add_topic("t", 2)
        self.counts = PartitionCounts(an_agent(self.api), self.api, clock)

    async def ask(self, count: int, topic: str = "t", *, validate_only: bool = False) -> CountResponse:
        frame = encode_count_request(CountRequest(topic, count, 1_000, validate_only), "", 7)
        request = a_request(SET_PARTITION_COUNT_KEY, 0, frame[HEADER_BYTES:])
        answer = await SetPartitionCount(self.counts)(request)
        assert answer.buffers is not None
        return decode_count_response(memoryview(b"".join(answer.buffers)))

    async def create_partitions(self, count: int) -> int:
        growing = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=count, assignments=None)
        message = CreatePartitionsRequest(topics=[growing], timeout_ms=1_000, validate_only=False)
        (result,) = (await call(CreatePartitions(self.counts), message, 3)).results
        return int(result.error_code)

    @property
    def topic(self) -> TopicImage:
        return self.api.image.topics_by_name["t"]


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)


@pytest.mark.requirement("P2")
async def test_create_partitions_raises_epochs(world: World) -> None:
    assert await world.create_partitions(5) == 0
    assert (world.topic.leader_epochs, world.topic.undeleted_partition_count) == ((1, 1, 0, 0, 0), 5)
    assert world.topic.initial_partition_count == 2


@pytest.mark.requirement("P3")
async def test_only_our_request_shrinks(world: World) -> None:
    assert await world.create_partitions(5) == 0
    assert await world.create_partitions(3) == ErrorCode.invalid_partitions
    assert list(world.topic.marked) == []
    assert await world.ask(3, validate_only=True) == CountResponse(0, None)
    assert list(world.topic.marked) == []
    assert await world.ask(3) == CountResponse(0, None)
    assert list(world.topic.marked) == [3, 4]
    assert await world.ask(2) == CountResponse(0, None), "repeated shrinks"
    assert list(world.topic.marked) == [2, 3, 4]


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("count", [1, 0, -1, -(2**31), 2, 3, 2**31 - 1])
async def test_bad_counts_are_refused_with_a_reason(world: World, count: int) -> None:
    """Below the initial count; as many; growth while one is marked; absurd."""
    await world.ask(4)
    await world.ask(2)
    head = len(world.api.log)
    answer = await world.ask(count)
    code = ErrorCode.policy_violation if count == 2**31 - 1 else ErrorCode.invalid_partitions
    assert (answer.error_code, bool(answer.message)) == (code, True)
    assert len(world.api.log) == head


async def test_unknown_topics_and_versions_are_refused(world: World) -> None:
    assert (await world.ask(3, "nope")).error_code == ErrorCode.unknown_topic_or_partition
    assert (await world.ask(3, "__cluster_metadata")).error_code == ErrorCode.unknown_topic_or_partition
    with pytest.raises(CloseConnection):
        await SetPartitionCount(world.counts)(a_request(SET_PARTITION_COUNT_KEY, 1, b""))


@pytest.mark.requirement("P2")
async def test_below_format_4_a_topic_grows_as_before_and_does_not_shrink(fake_clock: ManualClock) -> None:
    world = World(fake_clock, level=3)
    assert await world.create_partitions(5) == 0
    assert (world.topic.leader_epochs, world.topic.created_from) == ((0,) * 5, {})
    assert world.topic.initial_partition_count == 5, "keys are placed by modulo"
    refused = await world.ask(3)
    assert (refused.error_code, world.api.calls["change_partition_counts"]) == (ErrorCode.unsupported_version, 0)


@pytest.mark.requirement("P2")
@pytest.mark.parametrize("wanted", [5, 1 << 13])
async def test_a_change_with_a_lost_answer_is_not_made_twice(world: World, wanted: int) -> None:
    world.api.fail_after["change_partition_counts"].append(OutcomeUnknownError("lost"))
    assert await world.create_partitions(wanted) == 0
    assert world.topic.leader_epochs[:2] == (1, 1)
    world.api.fail_before["change_partition_counts"].append(UnavailableError("down"))
    (verdict,) = await world.counts.change([WantedCount("t", 3, may_shrink=True)], 10.0, validate_only=False)
    assert verdict.code is not ErrorCode.none


@pytest.mark.requirement("P3")
async def test_clients_see_the_holes_of_removed_partitions(world: World, fake_clock: ManualClock) -> None:
    await world.ask(5)
    await world.ask(2)
    world.api.empty_partitions.add((world.topic_id, 3))
    one = Candidate(world.api, 1)
    await fake_clock.advance(5)
    await one.controller.stop()
    cluster = an_agent(world.api)

    async def page(first: int) -> Any:
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=first)
        topic = DescribeTopicPartitionsRequest.TopicRequest(name="t")
        asked = DescribeTopicPartitionsRequest(topics=[topic], response_partition_limit=3, cursor=cursor)
        return await call(DescribeTopicPartitions(cluster, shared=None, authorizer=None), asked, 0)

    shown = await page(0)
    assert [each.partition_index for each in shown.topics[0].partitions] == [0, 1, 2]
    assert shown.next_cursor.partition_index == 4
    rest = await page(shown.next_cursor.partition_index)
    assert [(each.partition_index, each.leader_epoch) for each in rest.topics[0].partitions] == [(4, 1)]
    assert [world.topic.key(3), world.topic.has(4), world.topic.partition_count] == [None, True, 4]


# -- removals


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.requirement("P3")
async def test_the_controller_removes_what_is_empty_in_order(world: World, fake_clock: ManualClock) -> None:
    """The source goes after what was split off it."""
    world.topic_id = world.api.add_topic("u", 1)
    for count in (2, 4, 1):
        await world.counts.change([WantedCount("u", count, may_shrink=True)], 10.0, validate_only=False)
    one = Candidate(world.api, 1)

    def indexes() -> list[int]:
        return list(world.api.image.topics_by_name["u"].indexes)

    await fake_clock.advance(5)
    assert indexes() == [0, 1, 2, 3], "none is empty"
    world.api.empty_partitions |= {(world.topic_id, 1), (world.topic_id, 2)}
    await fake_clock.advance(5)
    assert indexes() == [0, 1, 3], "3 was split off 1"
    world.api.empty_partitions.add((world.topic_id, 3))
    await fake_clock.advance(5)
    assert indexes() == [0]
    calls = world.api.calls["oldest_extents"]
    await fake_clock.advance(20)
    assert world.api.calls["oldest_extents"] == calls, "nothing is looked at while nothing is marked"
    await one.controller.stop()


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("step", range(5))
async def test_a_controller_that_is_killed_at_any_step_is_continued(
    world: World, fake_clock: ManualClock, step: int, where: str
) -> None:
    """The call of this number fails before or after it took effect, and the process ends."""
    await world.ask(7)
    await world.ask(2)
    world.api.empty_partitions |= {(world.topic_id, index) for index in range(2, 7)}
    one = Candidate(world.api, 1)
    seen, real = 0, world.api.remove_partition

    async def dying(*args: object, **more: object) -> object:
        nonlocal seen
        seen += 1
        if seen == step + 1 and where == "before":
            raise Crash
        outcome = await real(*args, **more)  # type: ignore[arg-type]
        if seen == step + 1:
            raise Crash
        return outcome

    world.api.remove_partition = dying  # type: ignore[method-assign,assignment]
    await fake_clock.advance(3)
    await one.die()
    assert seen == step + 1
    left = len(world.topic.marked)
    assert left == 5 - step - (where == "after")
    world.api.remove_partition = real  # type: ignore[method-assign]
    two = Candidate(world.api, 2)
    await fake_clock.advance(30)
    assert (list(world.topic.indexes), list(world.topic.marked)) == ([0, 1], [])
    assert world.topic.removed == frozenset(range(2, 7))
    assert await world.ask(7) == CountResponse(0, None), "growth goes on once all are removed"
    assert {world.topic.leader_epochs[index] for index in range(2, 7)} == {2}
    await two.controller.stop()


async def test_a_topic_that_is_deleted_meanwhile_stops_nothing(world: World, fake_clock: ManualClock) -> None:
    await world.ask(4)
    await world.ask(2)
    world.api.empty_partitions |= {(world.topic_id, 2), (world.topic_id, 3)}
    real = world.api.oldest_extents

    async def deleted_first(*args: object) -> object:
        found = await real(*args)  # type: ignore[arg-type]
        await world.api.delete_topics(len(world.api.log), [world.topic_id])
        return found

    world.api.oldest_extents = deleted_first  # type: ignore[method-assign,assignment]
    one = Candidate(world.api, 1)
    await fake_clock.advance(10)
    assert (one.controller.is_active, world.api.image.topics_by_id.get(world.topic_id)) == (True, None)
    await one.controller.stop()
    assert uuid.UUID(int=0) not in world.api.image.topics_by_id
