"""A server under comparison: the requests of topics, configs and records that scenarios of share groups need.

Place: under scene.py. The server is an Apache Kafka node or a Headrace cluster; nothing here depends on which.
Invariant: a call returns after the server applied the change, on each of its addresses.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import confluent_kafka
from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.messages import message
from headrace.protocol.client.transport import ClientConfig, ask, parse_servers
from headrace.storage.records.codec import Record, encode_batch

PATIENCE_SECONDS = 240.0
PAUSE_SECONDS = 0.1
SETTLE_SECONDS = 0.3
"""Kafka shows a changed config a moment before its share partitions use it."""
SET = 0
GROUP = 32
TIMEOUT = timedelta(seconds=60)


class Server:
    """`bootstrap`: all addresses, as clients take them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.addresses = parse_servers(bootstrap)

    def ask(self, api_key: int, version: int, *, to: tuple[str, int] | None = None, **values: Any) -> Any:
        """Return the response to one request on a new connection. `to`: the address, else any."""
        return self.send(message(api_key, version).request(**values), api_key, version, to)

    def send(self, request: Any, api_key: int, version: int, to: tuple[str, int] | None = None) -> Any:
        """Return the response to a request that is made already."""
        config = ClientConfig((to,) if to else self.addresses, "scenario", 60_000)
        return ask(config, request, message(api_key, version).response_type)

    def coordinator(self, group: str) -> tuple[str, int]:
        """Return the address of the group's coordinator."""
        found: list[tuple[str, int]] = []

        def is_known() -> bool:
            answer = self.ask(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0)
            if answer.error_code is ErrorCode.none:
                found.append((answer.host, answer.port))
            return bool(found)

        until(is_known, f"a coordinator of {group}")
        return found[0]

    # -- topics

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> uuid.UUID:
        """Create a topic and return its id. `configs`: with underscores in place of dots."""
        m = message(ApiKey.CREATE_TOPICS, 7)
        entries = tuple(m.make("CreatableTopicConfig", name=k.replace("_", "."), value=v) for k, v in configs.items())
        topic = m.make(
            "CreatableTopic",
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=entries,
        )  # fmt: skip
        (made,) = self.send(m.request(topics=(topic,), timeout=TIMEOUT), ApiKey.CREATE_TOPICS, 7).topics
        assert made.error_code is ErrorCode.none, made
        until(lambda: self._partitions(name) == [partitions] * len(self.addresses), f"topic {name}")
        return uuid.UUID(int=made.topic_id.int)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Raise the topic's number of partitions to this."""
        m = message(ApiKey.CREATE_PARTITIONS, 3)
        topic = m.make("CreatePartitionsTopic", name=name, count=partitions, assignments=None)
        request = m.request(topics=(topic,), timeout=TIMEOUT, validate_only=False)
        (changed,) = self.send(request, ApiKey.CREATE_PARTITIONS, 3).results
        assert changed.error_code is ErrorCode.none, changed
        until(lambda: self._partitions(name) == [partitions] * len(self.addresses), f"{partitions} partitions")

    def delete_topic(self, name: str) -> None:
        """Delete the topic."""
        (gone,) = self.ask(ApiKey.DELETE_TOPICS, 5, topic_names=(name,), timeout=TIMEOUT).responses
        assert gone.error_code is ErrorCode.none, gone
        until(lambda: not any(self._partitions(name)), f"the end of {name}")
        time.sleep(SETTLE_SECONDS)

    def _partitions(self, name: str) -> list[int]:
        """Return how many partitions with a leader each address knows."""
        counts = []
        for address in self.addresses:
            m = message(ApiKey.METADATA, 12)
            topic = m.make("MetadataRequestTopic", topic_id=None, name=name)
            request = m.request(
                topics=(topic,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            (found,) = self.send(request, ApiKey.METADATA, 12, address).topics
            counts.append(sum(partition.error_code is ErrorCode.none for partition in found.partitions))
        return counts

    # -- records

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        """Write this many records as one batch."""
        now = time.time_ns() // 1_000_000
        batch = encode_batch([Record(n, now, b"key", b"value-%d" % n) for n in range(count)], base_offset=0)
        m = message(ApiKey.PRODUCE, 9)
        data = m.make("PartitionProduceData", index=partition, records=batch)
        topics = (m.make("TopicProduceData", name=topic, partition_data=(data,)),)
        request = m.request(transactional_id=None, acks=-1, timeout=TIMEOUT, topic_data=topics)

        def is_written() -> bool:
            (answer,) = self.send(request, ApiKey.PRODUCE, 9).responses
            return answer.partition_responses[0].error_code is ErrorCode.none

        until(is_written, f"records in {topic}")

    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 before this offset."""
        m = message(ApiKey.DELETE_RECORDS, 2)
        partition = m.make("DeleteRecordsPartition", partition_index=0, offset=before)
        topics = (m.make("DeleteRecordsTopic", name=topic, partitions=(partition,)),)
        (found,) = self.send(m.request(topics=topics, timeout=TIMEOUT), ApiKey.DELETE_RECORDS, 2).topics
        assert found.partitions[0].error_code is ErrorCode.none, found
        time.sleep(SETTLE_SECONDS)

    def begin_transaction(self, transactional_id: str) -> confluent_kafka.Producer:
        """Return a producer with an open transaction."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": transactional_id, "log_level": 0}
        )
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        return producer

    # -- configs of groups

    def configure_group(self, group: str, **configs: str) -> None:
        """Set configs of the group, with underscores in place of dots."""
        for name, value in configs.items():
            assert self.group_config_code(group, name.replace("_", "."), value) is ErrorCode.none, (name, value)
        time.sleep(SETTLE_SECONDS)

    def group_config_code(self, group: str, name: str, value: str) -> ErrorCode:
        """Set one config of a group and return the error code."""
        m = message(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
        entry = m.make("AlterableConfig", name=name, config_operation=SET, value=value)
        resource = m.make("AlterConfigsResource", resource_type=GROUP, resource_name=group, configs=(entry,))
        request = m.request(resources=(resource,), validate_only=False)
        (answer,) = self.send(request, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1).responses
        return ErrorCode(answer.error_code)


def until(is_reached: Callable[[], bool], what: str) -> None:
    """Ask until it is reached; AssertionError with `what` after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_reached():
        assert time.monotonic() < end, f"not reached: {what}"
        time.sleep(PAUSE_SECONDS)
