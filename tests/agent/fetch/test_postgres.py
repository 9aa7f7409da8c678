"""The read path on the real metastore: what the model promises, Postgres keeps."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from headrace.agent.fetch.service import FetchService
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, FileCommit, StagedBatch
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.api.transactions import NO_PRODUCER
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import new_file_id, new_inline_file_id, object_key
from headrace.storage.records.codec import decode_records
from headrace.storage.records.header import TRANSACTIONAL_BIT, read_header
from headrace.storage.segment.writer import SegmentWriter
from tests.agent.cluster.standing_view import StandingView
from tests.agent.fetch.fetch_world import BROKER_EPOCH, NEVER_SEEN, NODE_ID, Live, World, expected, split_sent
from tests.storage.batches import plain_batch


class PostgresWorld(World):
    """A World with its metadata in Postgres; its clock is the machine's."""

    def __init__(self, metastore: PostgresMetastore) -> None:
        super().__init__()
        self.postgres = metastore
        self.clock = SystemClock()  # type: ignore[assignment]
        self._born_ms = 0
        self.metastore = metastore  # type: ignore[assignment]
        self.view = StandingView(metastore.commit_shards, node_id=NODE_ID, broker_epoch=BROKER_EPOCH)
        self.service = self.new_service()

    async def begin(self) -> None:
        registration = AgentRegistration(None, uuid.uuid4(), "localhost", 9092, None)
        self.node_id, self.broker_epoch = await self.postgres.cluster.register_agent(registration)
        head = await self.postgres.cluster.metadata_head()
        await self.postgres.cluster.heartbeat(
            self.node_id, self.broker_epoch, metadata_offset=head, want_fence=False, session_timeout_ms=60_000
        )
        await self.service.start()

    async def topic(self, name: str, partitions: int, **configs: str) -> list[int]:
        head = await self.postgres.cluster.metadata_head()
        settings = {config.replace("_", "."): value for config, value in configs.items()}
        new = NewTopic(name, uuid.UUID(int=head << 64), partitions, settings)  # the topic's number will be `head`
        assert await self.postgres.topics.create_topics(head, [new])
        self.view.image = self.view.head = await load_image(self.postgres.cluster)
        topic = self.view.image.topics_by_name[name]
        self.names[topic.topic_number] = name
        keys = [topic.topic_number << 24 | index for index in range(partitions)]
        self.live.update((key, []) for key in keys)
        return keys

    async def commit(self, *batches: tuple[int, bytes], slot: int | None = None) -> uuid.UUID:
        """One file, flushed and committed by the agent under test; with a slot, an inline one. Its id."""
        writer, staged = SegmentWriter(), []
        for key, batch in batches:
            header = read_header(batch)
            topic_id = self.view.image.topics_by_number[key >> 24].topic_id
            position = writer.add(topic_id, key & 0xFFFFFF, key, memoryview(batch), header)
            producer = (header.producer_id, header.producer_epoch, header.base_sequence)
            plain = StagedBatch(key, position, len(batch), header.record_count, header.max_timestamp, *producer)
            begins = header.is_transactional and header.producer_id >= 0  # agents refuse others before the commit
            staged.append(plain._replace(transaction=BatchTransaction.ANY_PARTITION) if begins else plain)
        data = writer.finish()
        now_ms = await self.postgres.commits.database_ms()  # the service learns late of a clock that a test moved
        self._born_ms = max(now_ms, self._born_ms + 1)  # commits are fast: files of one millisecond have no order
        if slot is None:
            file_id = new_file_id(self._born_ms, self.rng)
            await self.store.put(object_key(file_id), data)
        else:
            file_id = new_inline_file_id(self._born_ms, slot, self.rng)
        self.service.on_flushed(file_id, data)
        commit = FileCommit(file_id, len(data), staged, None if slot is None else data)
        (answer,) = await self.postgres.commits.commit_files(self.node_id, self.broker_epoch, [commit])
        self.service.on_committed([commit], [answer])
        for (key, batch), verdict in zip(batches, answer.batches, strict=True):
            if verdict.outcome is BatchOutcome.APPENDED:
                last = verdict.base_offset + read_header(batch).last_offset_delta
                self.live[key].append(Live(verdict.base_offset, last, batch))
        return file_id


@pytest.fixture
async def world(metastore: PostgresMetastore) -> AsyncIterator[PostgresWorld]:
    world = PostgresWorld(metastore)
    await world.begin()
    yield world
    await world.service.close()


@pytest.mark.requirement("W5", "W8")
async def test_written_here_read_here_and_at_another_agent(world: PostgresWorld) -> None:
    key, other = await world.topic("t", 2)
    dead = plain_batch(2, b"dead", **NEVER_SEEN)
    await world.commit((key, plain_batch(3, b"a")), (key, dead), (key, plain_batch(1, b"b")), (other, plain_batch(1)))
    await world.commit((key, plain_batch(2, b"c")))
    stranger: FetchService = world.new_service()

    for service in (world.service, stranger):
        await world.request_fetch(
            {key: 4}, max_wait_ms=60_000, service=service
        )  # until it has learned of the last commit
        result = await world.request_fetch({key: 1, other: 0}, max_wait_ms=60_000, service=service)
        sent = split_sent(result.records(key))
        assert split_sent(result.records(other)) == expected(world.live[other], 0)
        assert result.partitions[key].high_watermark == 6
        if len(sent) < len(expected(world.live[key], 1)):  # the primary was asked before the feed brought the last one
            sent += split_sent((await world.request_fetch({key: 4}, max_wait_ms=60_000, service=service)).records(key))
        assert sent == expected(world.live[key], 1)


async def test_a_waiting_fetch_is_woken_by_the_feed_and_reads_its_extents_from_it(world: PostgresWorld) -> None:
    (key,) = await world.topic("t", 1)
    asked = world.metric("primary_queries_total")
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=30_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    await world.commit((key, plain_batch(2, b"news")))
    result = await asyncio.wait_for(waiting, 600)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert world.store.gets == []
    assert world.metric("primary_queries_total") == asked


async def test_a_deleted_topic_ends_a_wait_and_is_unknown(world: PostgresWorld) -> None:
    (key,) = await world.topic("t", 1)
    waiting = asyncio.ensure_future(world.request_fetch({key: 0}, max_wait_ms=30_000))
    await asyncio.sleep(0.05)

    (topic,) = world.view.image.topics_by_id
    assert await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic])
    result = await asyncio.wait_for(waiting, 600)

    assert result.code(key) == 100  # UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_is_delivered_with_its_marker_once_it_ended(world: PostgresWorld, commits: bool) -> None:
    """Through the whole read path: an end wakes readers, and cold agents answer the same."""
    (key,) = await world.topic("t", 1)
    who = (await world.postgres.transactions.init_producer("copy", 60_000, NO_PRODUCER, 4711)).producer
    fields = {"attributes": TRANSACTIONAL_BIT, "producer_id": who.producer_id, "producer_epoch": who.epoch}
    await world.commit((key, plain_batch(1, b"plain")))
    await world.commit((key, plain_batch(2, b"data", base_sequence=0, **fields)))
    await world.commit((key, plain_batch(1, b"behind")))

    await world.request_fetch({key: 3}, max_wait_ms=60_000)  # until the feed brought the last commit
    open_for = await world.request_fetch({key: 0}, isolation_level=1)
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, isolation_level=1, max_wait_ms=30_000))
    assert await _latest(world, isolation_level=1) == 1
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert split_sent(open_for.records(key)) == expected(world.live[key], 0)[:1]
    assert (open_for.partitions[key].last_stable_offset, open_for.partitions[key].high_watermark) == (1, 4)

    await world.postgres.transactions.end_transaction("copy", who, commits=commits, bumps=True, new_producer_id=4712)
    woken = await asyncio.wait_for(waiting, 600)
    assert split_sent(woken.records(key))[0] == expected(world.live[key], 1)[0]
    assert await _latest(world, isolation_level=1) == await _latest(world) == 5
    for service in (world.service, world.new_service()):
        await world.request_fetch({key: 4}, max_wait_ms=60_000, service=service)
        for isolation_level in (0, 1):
            result = await world.request_fetch({key: 1}, isolation_level=isolation_level, service=service)
            *data, marker = split_sent(result.records(key))
            assert data == expected(world.live[key], 1)
            header = read_header(marker)
            assert (header.base_offset, header.is_control, header.producer_epoch) == (4, True, who.epoch + 1)
            (record,) = decode_records(memoryview(marker))
            assert record.key == bytes([0, 0, 0, commits])
            partition = result.partitions[key]
            assert (partition.last_stable_offset, partition.high_watermark) == (5, 5)
            aborted = [(a.producer_id, a.first_offset) for a in partition.aborted_transactions or ()]
            assert aborted == ([] if commits or not isolation_level else [(who.producer_id, 1)])


async def _latest(world: PostgresWorld, isolation_level: int = 0) -> int:
    (found,) = await world.request_offsets([("t", 0, -1)], isolation_level=isolation_level)
    return int(found.offset)
