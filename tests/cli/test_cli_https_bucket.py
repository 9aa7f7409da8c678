"""`headrace agent` and its tools on a bucket behind https, addressed as by default: in virtual-host style."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer

from headrace.cli.main import main
from headrace.metastore.postgres.formatted import formatted_cluster_id
from tests.agent_process import AgentUnderTest
from tests.fixtures_s3 import BUCKET, REGION, HttpsServer, aws_credentials, https_s3, https_server

__all__ = ["aws_credentials", "https_s3", "https_server"]

RECORDS = [f"record {number}".encode() for number in range(1_000)]


def test_records_go_through_a_bucket_that_is_part_of_the_host_name(metastore_url: str, https_s3: HttpsServer) -> None:
    """Written by one agent and read from the bucket by another, which has none of them in memory.

    Agents that are forked from loaded code resolve the server's names (tests/loaded_schemas.py).
    """
    settings = {
        "metastore.url": metastore_url,
        "bucket": f"s3://{BUCKET}/{uuid.uuid4()}",
        "s3.endpoint": https_s3.url,
        "s3.region": REGION,
        "linger.ms": 25,
    }
    flags = [f"--{name.replace('.', '-')}={value}" for name, value in settings.items()]
    cluster_id = formatted_cluster_id(metastore_url)
    assert cluster_id is not None
    assert main(["storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, *flags]) == 0
    with AgentUnderTest(settings) as agent:
        _produce(agent.kafka)
        assert agent.stop() == 0
    with AgentUnderTest(settings) as agent:
        assert _consume(agent.kafka) == RECORDS


def _produce(bootstrap: str) -> None:
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for record in RECORDS:
        producer.produce("addressed", record, on_delivery=lambda error, _: error and refused.append(error))
    assert producer.flush(300) == 0
    assert refused == []


def _consume(bootstrap: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["addressed"])
    found: list[bytes] = []
    while len(found) < len(RECORDS):
        messages = consumer.consume(len(RECORDS), timeout=300)
        assert messages, f"no record within 300 s after {len(found)}"
        found += [value for message in messages if (value := message.value()) is not None]
    consumer.close()
    return found
