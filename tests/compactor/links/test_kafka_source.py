"""A link's job on a real Apache Kafka: transactions, aborts, idempotent producers, compaction, record for record."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.compactor.links import copy_job
from headrace.compactor.links.copy_job import SourceOpener
from headrace.compactor.links.discovery import found
from headrace.compactor.links.kafka_source import open_source
from headrace.config.link_configs import BOOTSTRAP_SERVERS, LINK_NAME, TOPICS, TopicFilter
from headrace.metastore.api.links import LINKED_EPOCH, NewLinkedTopic
from headrace.metastore.api.topics import NewTopic as LinkedTopic
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from tests.agent_process import AgentUnderTest, format_storage
from tests.compactor.links.link_world import LINK, LinkWorld
from tests.compat.kafka_server import kafka_server
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session
from tests.patch import Patch

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow, pytest.mark.requirement("X14")]

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
RECORDS = 200


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its bootstrap address, with the topics `orders` and `table`, which is compacted."""
    with kafka_server(tmp_path_factory.mktemp("kafka"), SETTINGS) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        cleaned = {"cleanup.policy": "compact", "segment.ms": "200", "delete.retention.ms": "100"}
        wanted = [NewTopic("orders", 2, 1, config={"retention.ms": "-1"}), NewTopic("table", 1, 1, config=cleaned)]
        for created in admin.create_topics(wanted).values():
            created.result()
        _fill(bootstrap)
        yield bootstrap


def _fill(bootstrap: str) -> None:
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    for number in range(RECORDS):
        plain.produce("orders", f"plain {number}", f"k{number % 5}", partition=number % 2, headers={"n": b"1"})
        plain.produce("table", f"value {number}", f"k{number % 7}")
        if number % 20 == 19:
            plain.flush()
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 0})
    transactional.init_transactions()
    for turn in range(6):
        transactional.begin_transaction()
        for number in range(10):
            transactional.produce("orders", f"transaction {turn} {number}", f"k{number}", partition=number % 2)
            transactional.produce("table", f"transaction {turn} {number}", f"k{number}")
        transactional.flush()
        if turn % 2:
            transactional.abort_transaction()
        else:
            transactional.commit_transaction()
        plain.produce("table", f"later {turn}", "last")
        plain.flush()
    transactional.begin_transaction()
    transactional.produce("orders", "aborted at the end", "k", partition=1)
    transactional.flush()
    transactional.abort_transaction()


def _read(bootstrap: str, topic: str, partition: int) -> tuple[list[tuple[object, ...]], int, int]:
    """The records of a partition with read_committed, as an application gets them; its log start and end, which the
    consumer's position reaches.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    place = TopicPartition(topic, partition)
    start, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([TopicPartition(topic, partition, start)])
    records: list[tuple[object, ...]] = []
    while (message := consumer.poll(30)) is not None:
        if message.error():
            break
        records.append((message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers()))
    assert consumer.position([place])[0].offset == end
    consumer.close()
    return records, start, end


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, raw: Session, kafka: str, patch: Patch, tmp_path: Path
) -> LinkWorld:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    patch.replace(copy_job, "RUN_SECONDS", 6.0)
    clock, rng = SystemClock(), random.Random(1)
    bucket = tmp_path.as_uri()
    world = LinkWorld(metastore, store=open_store(bucket, StoreOptions(), clock=clock, rng=rng), bucket=bucket)
    await world.create(**{BOOTSTRAP_SERVERS.replace(".", "__"): kafka})
    world.copier._opener = SourceOpener(Sealing(None), world.threads)
    world.clock = world.copier._clock = SystemClock()
    return world


async def _create_copies(world: LinkWorld, kafka: str) -> None:
    configs = {BOOTSTRAP_SERVERS: kafka, TOPICS: "orders,table"}
    source = open_source(configs, ThreadPoolExecutor(1))
    report = await found(LINK, source, TopicFilter(configs))
    await source.close()
    assert [topic.name for topic in report.topics] == ["orders", "table"]
    assert report.topics[0].configs == {"retention.ms": "-1"}
    for number, topic in enumerate(report.topics, 100):
        wanted = LinkedTopic(topic.name, uuid.UUID(int=number), topic.partition_count, {LINK_NAME: LINK})
        head = await world.metastore.cluster.metadata_head()
        linked = NewLinkedTopic(wanted, LINK, topic.source_id, LINKED_EPOCH)
        assert await world.metastore.links.create_linked_topics(world.controller_epoch, head, [linked])


async def test_consumers_of_a_copy_get_what_consumers_of_kafka_get(
    world: LinkWorld, kafka: str, metastore_url: str, tmp_path: Path
) -> None:
    await _create_copies(world, kafka)
    topic_ids = {each.topic_id for each in await world.progress()}
    await world.metastore.links.ask_promotion(list(topic_ids), force=False)
    await world.run()
    places = {"metastore.url": metastore_url, "bucket": world.bucket}
    await asyncio.to_thread(format_storage, places)
    with AgentUnderTest({**places, "process.roles": "broker"}) as agent:
        for each in await world.progress():
            place = each.topic, each.partition_index
            records, start, end = await asyncio.to_thread(_read, kafka, *place)
            copied, copied_start, copied_end = await asyncio.to_thread(_read, agent.kafka, *place)
            assert each.problem == ""
            assert copied_end == end
            kept = {record[0] for record in records}  # Kafka cleans the table meanwhile
            assert [record for record in copied if record[0] in kept] == records
            if each.topic == "orders":
                assert (copied, copied_start) == (records, start)
                assert len(records) == RECORDS // 2 + 15
            assert each.is_ready
