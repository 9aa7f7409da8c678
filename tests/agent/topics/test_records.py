"""DeleteRecords, DescribeLogDirs, DescribeProducers, and what readers notice of moved log starts."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DescribeLogDirsRequest, DescribeProducersRequest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.deletions import DeleteRecords
from headrace.agent.topics.partition_requests import DescribeLogDirs, DescribeProducers
from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.metastore.keys import commit_shard
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import AgentImage, Assignment
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import new_file_id
from tests.agent.client_calls import call, versions_of
from tests.agent.fetch.fetch_world import BROKER_EPOCH, NODE_ID, World
from tests.model.metastore_model import ModelMetastore

BUCKET = "s3://bucket/prefix"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.service.start()
    yield world
    await world.service.close()


async def delete(
    world: World, wanted: dict[str, dict[int, int]], version: int = 2, metastore: Any = None
) -> dict[tuple[str, int], tuple[int, int]]:
    """(topic, partition) -> (error, low watermark)."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    message = DeleteRecordsRequest(
        topics=[
            topic(
                name=name,
                partitions=[topic.DeleteRecordsPartition(partition_index=i, offset=o) for i, o in offsets.items()],
            )
            for name, offsets in wanted.items()
        ],
        timeout_ms=30_000,
    )
    configs = EffectiveConfigs(Settings())
    handler = DeleteRecords(world.view, metastore or world.model, configs, world.service.before_log_starts_move)
    answer: Any = await call(handler, message, version)
    return {(t.name, p.partition_index): (p.error_code, p.low_watermark) for t in answer.topics for p in t.partitions}


@pytest.mark.parametrize("version", versions_of(21))
async def test_records_go_up_to_an_offset_or_to_the_end(world: World, version: int) -> None:
    a, b = world.create_topic("t", 2)
    await world.append(a, b"1", b"2", b"3")
    await world.append(b, b"1", b"2")
    assert await delete(world, {"t": {0: 2, 1: -1}}, version) == {("t", 0): (0, 2), ("t", 1): (0, 2)}
    assert await delete(world, {"t": {0: 1}}, version) == {("t", 0): (0, 2)}, "never back"
    assert [world.model.partitions[key].log_start_offset for key in (a, b)] == [2, 2]


async def test_each_partition_has_its_own_refusal(world: World) -> None:
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"1", b"2")
    world.create_topic("compacted", 1)
    configs = {(TOPIC_RESOURCE, "compacted"): MappingProxyType({"cleanup.policy": "compact"})}
    world.view.image = world.view.head = dataclasses.replace(world.view.head, configs=configs)
    wanted = {"t": {0: 3, 1: 0}, "nobody": {0: -1}, "compacted": {0: -1}, "__cluster_metadata": {0: 1}}
    assert await delete(world, wanted) == {
        ("t", 0): (ErrorCode.offset_out_of_range, -1),
        ("t", 1): (ErrorCode.unknown_topic_or_partition, -1),
        ("nobody", 0): (ErrorCode.unknown_topic_or_partition, -1),
        ("compacted", 0): (ErrorCode.policy_violation, -1),
        ("__cluster_metadata", 0): (ErrorCode.invalid_topic_exception, -1),
    }
    assert await delete(world, {"t": {0: -2}}) == {("t", 0): (ErrorCode.offset_out_of_range, -1)}
    assert await delete(world, {"t": {0: 2}}) == {("t", 0): (0, 2)}, "the high watermark itself is in range"


@pytest.mark.parametrize("error", [UnavailableError("down"), OutcomeUnknownError("lost")])
async def test_a_metastore_that_does_not_answer_is_a_time_out(world: World, error: Exception) -> None:
    world.create_topic("t", 1)

    class Silent(ModelMetastore):
        async def move_log_starts(self, targets: Sequence[LogStartTarget], **_: Any) -> list[LogStartAnswer]:
            raise error

    found = await delete(world, {"t": {0: -1}, "nobody": {0: -1}}, metastore=Silent())
    assert found["t", 0] == (ErrorCode.request_timed_out, -1)
    assert found["nobody", 0] == (ErrorCode.unknown_topic_or_partition, -1)


async def test_no_call_moves_more_log_starts_than_producers_can_wait_for(world: World) -> None:
    """A call's cost grows with the square of its partitions, and ends under their shards' locks."""
    world.create_topic("t", 450)
    sizes: list[int] = []

    class Counting(ModelMetastore):
        async def move_log_starts(self, targets: Sequence[LogStartTarget], **more: Any) -> list[LogStartAnswer]:
            sizes.append(len(targets))
            if len(sizes) == 3:
                raise UnavailableError("down")
            return await world.model.move_log_starts(targets, **more)

    found = await delete(world, {"t": dict.fromkeys(range(450), -1)}, metastore=Counting())
    assert sizes == [200, 200, 50]
    codes = [found["t", index][0] for index in range(450)]
    assert codes == [0] * 400 + [ErrorCode.request_timed_out] * 50


async def test_readers_follow_the_log_start(world: World) -> None:
    """Below it OFFSET_OUT_OF_RANGE; the earliest offset, local or not, is the log start."""
    (key,) = world.create_topic("t", 1)
    for value in (b"1", b"2", b"3"):
        await world.append(key, value)
    assert (await world.fetch({key: 0})).code(key) == 0
    await delete(world, {"t": {0: 2}})
    await world.clock.advance(1)
    assert (await world.fetch({key: 1})).code(key) == ErrorCode.offset_out_of_range
    kept = await world.fetch({key: 2})
    assert (kept.code(key), kept.size > 0) == (0, True)
    for timestamp, wanted in ((OffsetKind.EARLIEST, 2), (-4, 2), (-5, -1), (OffsetKind.LATEST, 3)):
        (found,) = await world.list_offsets([("t", 0, int(timestamp))], version=9)
        assert (found.error_code, found.offset) == (0, wanted)


async def test_deleted_records_are_never_read_again_at_this_agent_even_before_the_feed(world: World) -> None:
    key, other = world.create_topic("t", 2)
    for value in (b"1", b"2", b"3"):
        await world.append(key, value)
        await world.append(other, value)
    assert (await world.fetch({key: 0})).code(key) == 0
    assert (await world.fetch({other: 0})).code(other) == 0
    await world.clock.advance(1)
    assert world.service._index.look(key, 1, 1) is not None, "known without the primary"
    world.metastore.change_page = lambda page: dataclasses.replace(page, rows=[])
    await delete(world, {"t": {0: 2}})
    assert (await world.fetch({key: 1})).code(key) == ErrorCode.offset_out_of_range
    assert (await world.fetch({key: 2})).code(key) == 0
    assert (await world.fetch({other: 0})).code(other) == 0


async def test_deleted_records_are_not_read_if_an_unrelated_shard_is_dropped_meanwhile(world: World) -> None:
    """As partial following does (decisions/0087)."""
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"1", b"2")
    await world.append(key, b"3")
    assert (await world.fetch({key: 0})).code(key) == 0
    index = world.service._index
    unrelated = next(shard for shard in index.heads if shard != commit_shard(key, index.shards))

    class Dropping(ModelMetastore):
        async def move_log_starts(self, targets: Sequence[LogStartTarget], **more: Any) -> list[LogStartAnswer]:
            index.drop({unrelated})
            return await world.model.move_log_starts(targets, **more)

    await world.clock.advance(1)
    assert index.look(key, 1, 1) is not None, "known without the primary"
    world.metastore.change_page = lambda page: dataclasses.replace(page, rows=[])
    assert await delete(world, {"t": {0: 2}}, metastore=Dropping()) == {("t", 0): (0, 2)}
    assert (await world.fetch({key: 1})).code(key) == ErrorCode.offset_out_of_range
    assert (await world.fetch({key: 2})).code(key) == 0


async def test_a_log_start_of_another_life_of_the_metastore_is_not_learnt(world: World) -> None:
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"1", b"2")
    await world.fetch({key: 0})
    on_moved = world.service.before_log_starts_move()
    world.model.incarnation_id = uuid.UUID(int=2)
    await world.clock.advance(1)
    assert (await world.fetch({key: 0})).code(key) == 0
    on_moved(key, 2)
    assert (await world.fetch({key: 0})).code(key) == 0
    assert world.service.log_start_offset(key) == 0


async def test_a_lagging_agent_asks_the_primary_before_it_tells_a_consumer_that_it_is_out_of_range(
    world: World,
) -> None:
    """Its index still holds what went, and lacks what came: it answers with neither error nor rewind."""
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"1", b"2")
    await world.fetch({key: 0})
    world.metastore.change_page = lambda page: dataclasses.replace(page, rows=[], heads={})
    await world.append(key, b"3", b"4")
    await delete(world, {"t": {0: 3}})
    behind = await world.fetch({key: 2})
    assert behind.code(key) == ErrorCode.offset_out_of_range, "where its index ends, though that is below the log"
    ahead = await world.fetch({key: 3})
    assert (ahead.code(key), ahead.size > 0) == (0, True), "beyond the index, but not beyond the log"
    assert (await world.fetch({key: 5})).code(key) == ErrorCode.offset_out_of_range


def lead_by_this_agent(world: World, other: dict[str, int]) -> None:
    """Two agents, of which the second one is preferred for one partition of each topic in `other`."""
    nodes = (NODE_ID, NODE_ID + 1)
    agents = {n: AgentImage(n, 1, world.model.incarnation_id, "h", 1, None, False) for n in nodes}
    topics = {
        name: dataclasses.replace(
            topic,
            assignments=MappingProxyType(
                {index: Assignment((NODE_ID + (other.get(name) == index),)) for index in topic.indexes}
            ),
        )
        for name, topic in world.view.image.topics_by_name.items()
    }
    world.view.image = world.view.head = dataclasses.replace(
        world.view.image,
        agents=MappingProxyType(agents),
        topics_by_name=MappingProxyType(topics),
        topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics.values()}),
    )


@pytest.mark.parametrize("version", versions_of(35))
async def test_log_dirs_are_the_bucket_with_the_bytes_of_the_partitions_led_here(world: World, version: int) -> None:
    a, b = world.create_topic("t", 2)
    (c,) = world.create_topic("u", 1)
    for key in (a, b, c):
        await world.append(key, b"x" * 100)
    await world.append(a, b"y" * 1000)
    lead_by_this_agent(world, other={"t": 1})
    handler = DescribeLogDirs(world.view, world.model, BUCKET, shared=None)

    async def sizes(topics: Any) -> dict[tuple[str, int], int]:
        answer: Any = await call(handler, DescribeLogDirsRequest(topics=topics), version)
        (result,) = answer.results
        assert (result.error_code, result.log_dir) == (0, BUCKET)
        if version >= 4:
            assert (result.total_bytes, result.usable_bytes) == (-1, -1)
        return {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}

    found = dict(zip((a, c), await world.model.partition_sizes([a, c]), strict=True))
    assert found[a] > found[c] > 100
    assert await sizes(None) == {("t", 0): found[a], ("u", 0): found[c]}
    topic = DescribeLogDirsRequest.DescribableLogDirTopic
    assert await sizes([topic(topic="u", partitions=[0, 7]), topic(topic="gone", partitions=[0])]) == {
        ("u", 0): found[c]
    }
    await delete(world, {"u": {0: -1}})
    assert (await sizes(None))["u", 0] == 0


async def test_log_dirs_without_a_metastore_are_an_error_of_the_directory(world: World) -> None:
    world.create_topic("t", 1)

    class Silent(ModelMetastore):
        async def partition_sizes(self, partition_keys: Sequence[int]) -> list[int]:
            raise UnavailableError("down")

    handler = DescribeLogDirs(world.view, Silent(), BUCKET, shared=None)
    answer: Any = await call(handler, DescribeLogDirsRequest(topics=None), 4)
    assert answer.results[0].error_code == ErrorCode.request_timed_out


async def test_producers_are_shown_as_the_next_commit_judges_them(world: World) -> None:
    (key,) = world.create_topic("t", 1)
    file_id = new_file_id(world.clock.wall_ms(), world.rng)
    batches = [StagedBatch(key, 100 * n, 100, 5, 1_000 + n, 77, 3, 5 * n) for n in range(2)]
    await world.model.commit_files(NODE_ID, BROKER_EPOCH, [FileCommit(file_id, 300, batches)])
    topic = DescribeProducersRequest.TopicRequest
    message = DescribeProducersRequest(
        topics=[
            topic(name="t", partition_indexes=[0, 1, 0]),
            topic(name="gone", partition_indexes=[0]),
            topic(name="t", partition_indexes=[0]),
        ]
    )
    answer: Any = await call(DescribeProducers(world.view, world.model), message, 0)
    (known, unknown), (gone,) = (t.partitions for t in answer.topics)  # each once, however often it is named
    assert known.error_code == 0
    assert [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.current_txn_start_offset)
        for p in known.active_producers
    ] == [(77, 3, 9, 1_001, -1)]
    assert unknown.error_code == gone.error_code == ErrorCode.unknown_topic_or_partition
