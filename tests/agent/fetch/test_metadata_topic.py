"""`__cluster_metadata` through Fetch, ListOffsets, Metadata and Produce."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch.rendered_topics import MetadataTopic
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults, why_illegal
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.log.kip631_records import CredentialInfo, FenceBrokerRecord, UserScramCredentialRecord
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, METADATA_TOPIC_ID, render_batch
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord
from headrace.metastore.log.records import decode_record, encode_record
from headrace.protocol.fetch_codec import FetchPartition
from headrace.storage.errors import TruncatedError, UnavailableError
from headrace.storage.records.codec import decode_records
from tests.agent.client_calls import call
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

MANY = 1 << 20


class TruncatedLog(FakeClusterApi):
    """A log with a snapshot in place of the records below `start`."""

    start = 0
    away = False

    async def metadata_log_start(self) -> int:
        if self.away:
            raise UnavailableError("away")
        return self.start

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        if start_offset < self.start:
            raise TruncatedError(f"gone: {start_offset}")
        return await super().read_metadata(start_offset, limit)


@pytest.fixture
async def api(fake_clock: ManualClock) -> TruncatedLog:
    api = TruncatedLog(fake_clock)
    api.add_agent(1, "zone-a")
    api.add_topic("orders", 5)
    return api


@pytest.fixture
async def topic(api: TruncatedLog) -> MetadataTopic:
    cluster = an_agent(api)
    await cluster.catch_up()
    return MetadataTopic(api, cluster)


async def _read(topic: MetadataTopic, offset: int, max_bytes: int = MANY) -> Any:
    return await topic.fetch(FetchPartition(0, offset, max_bytes))


@pytest.mark.requirement("C2")
async def test_every_record_is_at_its_own_offset_with_a_null_key(api: TruncatedLog, topic: MetadataTopic) -> None:
    reply = await _read(topic, 0)
    records = decode_records(memoryview(reply.records[0]))
    assert [(r.offset, r.key, r.value) for r in records] == [(n, None, record) for n, record in enumerate(api.log)]
    assert (reply.error_code, reply.high_watermark, reply.log_start_offset) == (0, len(api.log), 0)


async def test_a_reader_goes_on_from_any_offset_and_gets_one_record_at_least(
    api: TruncatedLog, topic: MetadataTopic
) -> None:
    found = []
    while len(found) < len(api.log):
        reply = await _read(topic, len(found), max_bytes=1)
        (record,) = decode_records(memoryview(reply.records[0]))
        found.append(record.value)
    assert found == api.log
    assert (await _read(topic, len(found))).records == ()


async def test_a_reader_ahead_of_the_image_is_judged_by_the_primary(api: TruncatedLog, topic: MetadataTopic) -> None:
    head = len(api.log)
    api.append(FenceBrokerRecord(broker_id=1, broker_epoch=0))
    ahead = await _read(topic, head + 1)
    assert (ahead.error_code, ahead.high_watermark) == (0, head + 1)
    assert (await _read(topic, head + 2)).error_code == ErrorCode.offset_out_of_range


async def test_below_the_log_start_is_out_of_range(api: TruncatedLog, topic: MetadataTopic) -> None:
    api.start = 3
    reply = await _read(topic, 2)
    assert (reply.error_code, reply.log_start_offset) == (ErrorCode.offset_out_of_range, 3)
    assert (await _read(topic, 3)).error_code == 0
    assert await topic.offset(0, OffsetKind.EARLIEST) == (0, 3)


async def test_list_offsets(api: TruncatedLog, topic: MetadataTopic) -> None:
    assert await topic.offset(0, OffsetKind.EARLIEST) == (0, 0)
    api.append(FenceBrokerRecord(broker_id=1, broker_epoch=0))
    assert await topic.offset(0, OffsetKind.LATEST) == (0, len(api.log))
    assert await topic.offset(0, 1_700_000_000_000) == (0, -1)
    assert (await topic.offset(1, OffsetKind.LATEST))[0] == ErrorCode.unknown_topic_or_partition


async def test_other_partitions_are_unknown_and_an_outage_is_retriable(api: TruncatedLog, topic: MetadataTopic) -> None:
    reply = await topic.fetch(FetchPartition(1, 0, MANY))
    assert reply.error_code == ErrorCode.unknown_topic_or_partition
    api.away = True
    assert (await _read(topic, 0)).error_code == ErrorCode.kafka_storage_error
    assert await topic.offset(0, OffsetKind.EARLIEST) == (ErrorCode.kafka_storage_error, -1)


@pytest.mark.requirement("X2")
def test_no_reader_sees_what_logins_are_checked_by() -> None:
    keys = ScramKeys(mechanism=1, salt=b"SALT", iterations=4096, stored_key=b"STORED", server_key=b"SERVER")
    info = CredentialInfo(mechanism=1, salt=b"SALT", salted_password=b"SALTED", iterations=8192)
    told = render_batch(
        0,
        [
            encode_record(UserScramKeysRecord(user_name="alice", keys=(keys,))),
            encode_record(UserScramCredentialRecord(user_name="bob", credential_infos=(info,))),
        ],
    )
    for secret in (b"SALT", b"STORED", b"SERVER"):
        assert secret not in told
    alice, bob = (decode_record(record.value or b"") for record in decode_records(memoryview(told)))
    assert isinstance(alice, UserScramKeysRecord)
    assert isinstance(bob, UserScramCredentialRecord)
    assert (alice.user_name, alice.keys[0].iterations) == ("alice", 4096)
    assert (bob.user_name, bob.credential_infos[0].iterations) == ("bob", 8192)


def test_all_agents_render_the_same_bytes() -> None:
    records = [encode_record(FenceBrokerRecord(broker_id=n, broker_epoch=n)) for n in range(3)]
    assert render_batch(7, records) == render_batch(7, records)
    assert [r.offset for r in decode_records(memoryview(render_batch(7, records)))] == [7, 8, 9]


async def test_metadata_shows_it_by_name_only_and_it_cannot_be_created(
    api: TruncatedLog, fake_clock: ManualClock
) -> None:
    cluster = an_agent(api)
    await cluster.catch_up()
    creation = TopicCreation(cluster, api, fake_clock, random.Random(5), lambda: TopicDefaults(1, 1))
    handler = Metadata(cluster, DescribedTopics(cluster, creation, lambda: True), shared=None, counts=None)
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=METADATA_TOPIC)])
    (shown,) = (await call(handler, asked, 12)).topics
    assert (shown.error_code, shown.is_internal, len(shown.partitions)) == (0, True, 1)
    assert uuid.UUID(str(shown.topic_id)) == METADATA_TOPIC_ID
    assert shown.partitions[0].leader_id == 1
    everything = await call(handler, MetadataRequest(topics=None), 12)
    assert [t.name for t in everything.topics] == ["orders"]
    assert why_illegal(METADATA_TOPIC) is not None
