"""`headrace agent` and its tools on a bucket behind https, addressed as by default: in virtual-host style."""

from __future__ import annotations

import uuid

from tests.agent_process import AgentUnderTest, format_storage
from tests.fixtures_s3 import BUCKET, REGION, HttpsServer, aws_credentials, https_s3, https_server
from tests.kafka_clients import KafkaClients

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
    format_storage(settings)
    with AgentUnderTest(settings) as agent:
        KafkaClients(agent.kafka, {"enable.idempotence": True}).produce("addressed", RECORDS)
        assert agent.stop() == 0
    with AgentUnderTest(settings) as agent:
        found = KafkaClients(agent.kafka).read_in_group("addressed", len(RECORDS), "g")
        assert [message.value() for message in found] == RECORDS
