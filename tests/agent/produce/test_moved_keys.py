"""Batches for a partition that is split in two are searched for keys that moved."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.topic_traffic import OTHER_TOPICS
from headrace.agent.produce.metrics import TOPICS_SHOWN, ProduceMetrics
from headrace.agent.produce.validate import has_moved_key
from headrace.metastore.api.commit import NO_ALIAS, BatchAnswer, BatchOutcome, FileAnswer, FileCommit, MovedKeys
from headrace.metastore.partitions.placement import key_hash
from headrace.metastore.partitions.topic_partitions import Split
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import MAX_OPENED_BYTES, Record, encode_batch
from headrace.storage.records.compression import Codec, compress
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import HEADER_BYTES
from tests.agent.produce.produce_world import ProduceWorld
from tests.model.metastore_model import ModelMetastore
from tests.nouns import NOUNS
from tests.storage.batches import forge

COUNT = 4
KEYS = [b"key-%d" % number for number in range(400)]
MOVED = [key for key in KEYS if key_hash(key) % 8 == 6]
STAYING = [key for key in KEYS if key_hash(key) % 8 == 2]
ELSEWHERE = [key for key in KEYS if key_hash(key) % 4 == 1]


def _batch(keys: list[bytes | None], codec: Codec = Codec.NONE) -> memoryview:
    records = [Record(index, 1_700_000_000_000, key, b"v") for index, key in enumerate(keys)]
    return memoryview(encode_batch(records, codec=codec, base_offset=0))


@pytest.mark.parametrize("codec", Codec)
async def test_one_moved_key_is_found_wherever_it_is(codec: Codec) -> None:
    staying: list[bytes | None] = [None, *STAYING, *ELSEWHERE, None]
    assert not await has_moved_key(_batch(staying, codec), "murmur2", 2, COUNT)
    for place in (0, len(staying) // 2, len(staying)):
        keys = [*staying[:place], MOVED[0], *staying[place:]]
        assert await has_moved_key(_batch(keys, codec), "murmur2", 2, COUNT)


async def test_a_key_moves_by_the_partitioner_that_the_topic_names() -> None:
    batches = [_batch([key]) for key in STAYING + MOVED]
    by_crc32 = [await has_moved_key(batch, "crc32", 2, COUNT) for batch in batches]
    by_murmur2 = [await has_moved_key(batch, "murmur2", 2, COUNT) for batch in batches]
    assert by_murmur2 == [False] * len(STAYING) + [True] * len(MOVED)
    assert by_crc32 != by_murmur2
    assert any(by_crc32)


NOTHING = (MovedKeys.UNKNOWN, NO_ALIAS)


class SeenCounts:
    """A metastore that notes what the commits say of batches, by partition key."""

    def __init__(self, model: ModelMetastore) -> None:
        self._model = model
        self.counts: dict[int, tuple[int, int]] = {}

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        return getattr(self._model, name)

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        self.counts |= {batch.partition_key: (batch.keys, batch.alias) for file in files for batch in file.batches}
        return await self._model.commit_files(node_id, broker_epoch, files)


async def test_the_commit_hears_of_batches_for_parents_whether_a_key_moved() -> None:
    world = ProduceWorld()
    seen = world.metastore = SeenCounts(world.model)
    async with world:
        topic = world.create_topic("t", 8)
        world.put_topic(replace(topic, splits={2: Split(6), 3: Split(7, 100)}))
        world.view.image = world.view.head
        keys = {2: [*STAYING, *MOVED], 3: STAYING, 6: MOVED, 1: MOVED}
        batches = {index: _batch([*some]).tobytes() for index, some in keys.items()}
        answers = await world.answers({"t": batches})
        assert {answers["t", index].error for index in keys} == {"none"}
        assert {topic.key(index) for index in keys} == seen.counts.keys()
        counts = {index: seen.counts[topic.key(index) or 0] for index in keys}
        assert counts == {2: (MovedKeys.MOVED, NO_ALIAS), 3: (MovedKeys.STAY, NO_ALIAS), 6: NOTHING, 1: NOTHING}


class RefusesMovedKeys(SeenCounts):
    """The same as after the boundary."""

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        answers = await super().commit_files(node_id, broker_epoch, files)
        refused = BatchAnswer(BatchOutcome.MOVED_KEY, -1, -1)
        return [replace(answer, batches=[refused] * len(answer.batches)) for answer in answers]


async def test_refused_moved_keys_are_counted_by_topic() -> None:
    world = ProduceWorld()
    world.metastore = RefusesMovedKeys(world.model)
    async with world:
        for name in ("t", "u"):
            world.put_topic(replace(world.create_topic(name, 8), splits={2: Split(6, 0)}))
        world.view.image = world.view.head
        batch = _batch([MOVED[0]]).tobytes()
        for names in (("t",), ("t", "u")):
            answers = await world.answers({name: {2: batch} for name in names})
            assert {answer.error for answer in answers.values()} == {"invalid_record"}

        def counted(topic: str) -> float | None:
            return world.registry.get_sample_value("headrace_moved_keys_refused_total", {"topic": topic})

        assert (counted("t"), counted("u")) == (2, 1)


def test_topics_beyond_a_hundred_are_counted_together() -> None:
    registry = CollectorRegistry()
    metrics = ProduceMetrics(registry)
    for number in range(TOPICS_SHOWN + 2):
        metrics.count_moved_keys(f"t{number}")
    name = "headrace_moved_keys_refused_total"
    assert registry.get_sample_value(name, {"topic": OTHER_TOPICS}) == 2
    assert registry.get_sample_value(name, {"topic": "t0"}) == 1


async def test_while_a_topic_halves_batches_for_the_parents_of_aliases_are_searched_too() -> None:
    world = ProduceWorld()
    seen = world.metastore = SeenCounts(world.model)
    async with world:
        topic = world.create_topic("t", 8)
        world.put_topic(replace(topic, halving=4, aliases={6: 2}))
        world.view.image = world.view.head
        keys = {2: MOVED, 3: MOVED}
        batches = {index: _batch([*some]).tobytes() for index, some in keys.items()}
        await world.answers({"t": batches})
        assert {seen.counts[topic.key(index) or 0] for index in keys} == {(MovedKeys.MOVED, NO_ALIAS), NOTHING}
        assert seen.counts[topic.key(3) or 0] == NOTHING, "7 is not an alias yet"


async def test_a_batch_for_an_alias_is_staged_for_its_parent_and_answered_as_it_came() -> None:
    world = ProduceWorld()
    seen = world.metastore = SeenCounts(world.model)
    async with world:
        topic = world.create_topic("t", 8)
        world.put_topic(replace(topic, undeleted_partition_count=4, aliases={6: 2}))
        world.view.image = world.view.head
        batches = {6: _batch([*MOVED]).tobytes(), 1: _batch([b"k"]).tobytes()}
        answers = await world.answers({"t": batches})
        assert {answers["t", index].error for index in batches} == {"none"}
        assert seen.counts == {topic.key(2): (MovedKeys.UNKNOWN, 6), topic.key(1): NOTHING}
        assert world.model.partitions[topic.key(6) or 0].high_watermark == 0


async def test_the_topic_says_how_its_keys_are_hashed() -> None:
    world = ProduceWorld()
    seen = world.metastore = SeenCounts(world.model)
    async with world:
        topic = world.create_topic("t", 8, headrace_partitioner="crc32")
        world.put_topic(replace(topic, splits={2: Split(6)}))
        world.view.image = world.view.head
        for key in STAYING + MOVED:
            await world.answers({"t": {2: _batch([key]).tobytes()}})
            moved = zlib.crc32(key) % 8 == 6
            assert seen.counts[topic.key(2) or 0] == (MovedKeys.MOVED if moved else MovedKeys.STAY, NO_ALIAS)


async def test_a_batch_that_cannot_be_read_is_refused() -> None:
    packed = compress(Codec.ZSTD, bytes(MAX_OPENED_BYTES + 1))
    header = _batch([b"k"])[:HEADER_BYTES].tobytes()
    bomb = forge(header + packed, batch_length=49 + len(packed), attributes=int(Codec.ZSTD))
    with pytest.raises(BatchTooLargeError):
        await has_moved_key(memoryview(bomb), "murmur2", 2, 4)
    with pytest.raises(CorruptError):
        await has_moved_key(memoryview(forge(_batch([b"k"] * 9), record_count=8)), "murmur2", 2, 4)
