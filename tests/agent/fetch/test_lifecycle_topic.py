"""Both lifecycle topics from the tables of a real Postgres: every offset leads to the watermark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch import rendered_topics as lifecycle_topic
from headrace.agent.fetch.rendered_topics import AuditTopic, KnownEnds, LifecycleTopic, RemoteLogTopic, rendered_topics
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, METADATA_TOPIC_ID
from headrace.metastore.postgres.segment_logs.segment_logs import PostgresSegmentLogs
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.topics import AUDIT_IMAGE, AUDIT_TOPIC, REMOTE_LOG_IMAGE, REMOTE_LOG_TOPIC
from headrace.protocol.fetch_codec import FetchPartition
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import read_header
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock
from tests.metastore.lifecycle_rows import TOPIC, LifecycleRows, one_life

MANY = 1 << 20
pytestmark = pytest.mark.requirement("R12")


@pytest.fixture
def rows(metastore_url: str) -> Iterator[LifecycleRows]:
    with psycopg.connect(metastore_url) as connection:
        yield LifecycleRows(connection)


@pytest.fixture
def topics(
    rows: LifecycleRows, metastore: PostgresMetastore, fake_clock: ManualClock
) -> tuple[RemoteLogTopic, AuditTopic]:
    view, ends = an_agent(FakeClusterApi(fake_clock)), KnownEnds(metastore.segment_logs, fake_clock)
    return RemoteLogTopic(metastore.segment_logs, view, ends), AuditTopic(
        metastore.segment_logs, view, ends, MemoryStore()
    )


async def read_on(topic: LifecycleTopic, index: int, offset: int, max_bytes: int = MANY) -> list[Record]:
    """The same as a consumer does: from after each batch on, until the watermark."""
    found: list[Record] = []
    for _ in range(1_000):
        reply = await topic.fetch(FetchPartition(index, offset, max_bytes))
        assert reply.error_code == ErrorCode.none
        if offset == reply.high_watermark:
            assert not reply.records
            return found
        ((batch,),) = (reply.records,)
        header = read_header(batch)
        assert header.base_offset == offset
        found += decode_records(memoryview(batch))
        offset = header.base_offset + header.last_offset_delta + 1
        assert offset <= reply.high_watermark
    raise AssertionError("the reader does not get to the watermark")


@pytest.mark.parametrize("page", [1, 2, 1_000])
@pytest.mark.parametrize("max_bytes", [1, 400, MANY])
async def test_every_offset_leads_to_the_watermark(
    rows: LifecycleRows, topics: Any, monkeypatch: pytest.MonkeyPatch, page: int, max_bytes: int
) -> None:
    monkeypatch.setattr(lifecycle_topic, "PAGE_RECORDS", page)
    one_life(rows)
    rows.forget([(999, 4)])
    for topic, kept in zip(topics, ([7, 8, 10, 11], list(range(10))), strict=True):
        for offset in range(12 if topic is topics[0] else 11):
            found = await read_on(topic, rows.partition, offset, max_bytes)
            assert [record.offset for record in found] == [n for n in kept if n >= offset]


async def test_an_offset_after_the_last_record_gets_an_empty_batch(rows: LifecycleRows, topics: Any) -> None:
    rows.segment(5, 1, 0)
    rows.segment(5, 1, 3, buried_ms=1)
    rows.segment(5, 1, 3, buried_ms=2)
    rows.forget([(5, 1)])
    for offset in range(3):
        assert await read_on(topics[0], rows.partition, offset) == []
    assert (await topics[0].offset(rows.partition, OffsetKind.LATEST)) == (0, 3)


@pytest.mark.requirement("R3")
async def test_the_audit_has_every_change_and_the_other_topic_the_state(rows: LifecycleRows, topics: Any) -> None:
    one_life(rows)
    remote, audit = [await read_on(topic, rows.partition, 0) for topic in topics]
    whole, compacted = Projection(), Projection()
    for record in audit:
        assert record.value is not None
        whole.apply(StreamRecord(*record[:4]))
    for record in remote:
        compacted.apply(StreamRecord(*record[:4]), is_compacted=True)
    buried = {record.key for record in remote if record.value is None}
    assert {str(key).encode() for key in whole.segments.keys() - compacted.segments.keys()} == buried
    assert len(buried) == 2
    for key, segment in compacted.segments.items():
        assert segment == whole.segments[key], "also what only the first record of a key has as a field"
    assert compacted.partitions == whole.partitions
    assert len(compacted.partitions) == 1


async def test_both_ends_and_what_is_beyond_them(rows: LifecycleRows, topics: Any) -> None:
    one_life(rows)
    rows.connection.execute("UPDATE remote_log_heads SET audit_start = 4")
    rows.connection.execute("DELETE FROM remote_segment_events WHERE audit_offset < 4")
    rows.connection.commit()
    remote, audit = topics
    assert [await remote.offset(rows.partition, kind) for kind in (-2, -1, 5)] == [(0, 0), (0, 12), (0, -1)]
    assert [await audit.offset(rows.partition, kind) for kind in (-2, -1, 5)] == [(0, 4), (0, 10), (0, -1)]
    for topic, offset in ((remote, 13), (audit, 11), (audit, 3)):
        reply = await topic.fetch(FetchPartition(rows.partition, offset, MANY))
        assert reply.error_code == ErrorCode.offset_out_of_range
    for index in (-1, 50):
        assert (await remote.fetch(FetchPartition(index, 0, MANY))).error_code == ErrorCode.unknown_topic_or_partition
        assert (await remote.offset(index, -1))[0] == ErrorCode.unknown_topic_or_partition
    empty = (rows.partition + 1) % 50
    reply = await remote.fetch(FetchPartition(empty, 0, MANY))
    assert (reply.error_code, reply.high_watermark, list(reply.records)) == (0, 0, [])


async def test_waiting_readers_share_two_queries_a_second(
    rows: LifecycleRows, topics: Any, fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, audit = topics
    calls: list[int] = []
    ask = PostgresSegmentLogs.segment_log_ends

    async def counted(self: PostgresSegmentLogs) -> Any:
        calls.append(1)
        return await ask(self)

    monkeypatch.setattr(PostgresSegmentLogs, "segment_log_ends", counted)
    at_end = FetchPartition(rows.partition, 0, MANY)
    for _ in range(20):
        assert not await remote.has_news(at_end)
        assert not await audit.has_news(at_end)
    assert len(calls) == 1
    rows.segment(5, 1, 0)
    assert not await remote.has_news(at_end)
    fake_clock.jump(0.5)
    assert await remote.has_news(at_end)
    assert await audit.has_news(at_end)
    assert len(calls) == 2


async def test_an_outage_is_retriable(topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise UnavailableError("away")

    for name in ("segment_log_ends", "read_remote_log", "read_audit_log"):
        monkeypatch.setattr(PostgresSegmentLogs, name, away)
    for topic in topics:
        assert (await topic.fetch(FetchPartition(0, 0, MANY))).error_code == ErrorCode.kafka_storage_error
        assert await topic.offset(0, -1) == (ErrorCode.kafka_storage_error, -1)
    assert await topics[0].has_news(FetchPartition(0, 0, MANY))


def test_they_are_found_by_name_and_by_id(metastore: PostgresMetastore, fake_clock: ManualClock) -> None:
    found = rendered_topics(metastore, MemoryStore(), an_agent(FakeClusterApi(fake_clock)), fake_clock)
    for name, topic_id in (
        (REMOTE_LOG_TOPIC, REMOTE_LOG_IMAGE.topic_id),
        (AUDIT_TOPIC, AUDIT_IMAGE.topic_id),
        (METADATA_TOPIC, METADATA_TOPIC_ID),
    ):
        assert found.find(name) is found.find(topic_id) is not None
    assert found.find("orders") is found.find(TOPIC) is None
