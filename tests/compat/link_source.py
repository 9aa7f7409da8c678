"""A source for links on a real Apache Kafka: its listeners with logins, the topics that a user would have, a reader.

Place: used by test_links.py and test_link_sources.py.
Invariant: records are written by librdkafka, and read by it: no code of links takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.config.free_ports import free_ports

LINK_USER, WRITER, PASSWORD = "link", "writer", "a password"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
EVERY_SECONDS = 60
ONE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.cleaner.backoff.ms": "200",
}
Row = tuple[Any, ...]
"""Offset, time in ms, key, value, headers."""


def secured(certificate: Path, key: Path) -> tuple[dict[str, str], str]:
    """Settings of a node with a PLAINTEXT and a SASL_SSL listener, and the address of the latter.

    A client without a login may do everything, as LINK_USER may; WRITER may do what no ACL denies.
    """
    plain, secure, controller = free_ports(3)
    both = key.with_name("both.pem")
    both.write_text(key.read_text() + certificate.read_text())
    jaas = "org.apache.kafka.common.security"
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in (LINK_USER, WRITER))
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure}"
    return {
        **ONE_NODE,
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{jaas}.plain.PlainLoginModule required {users};",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{jaas}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{LINK_USER}",
        "allow.everyone.if.no.acl.found": "true",
    }, f"127.0.0.1:{secure}"


def login(mechanism: str, certificate: Path, user: str = LINK_USER, password: str = PASSWORD) -> dict[str, str]:
    """The login of a client, as librdkafka and a link's file have it."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def add_scram_users(bootstrap: str) -> None:
    """Give LINK_USER its password for both mechanisms of SCRAM."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        user = UserScramCredentialUpsertion(LINK_USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result()


def fill(bootstrap: str, *, turns: int = 6) -> None:
    """Create and fill `orders` (every codec, idempotent), `payments` (transactions, some aborted), `table`
    (compacted)."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cleaned = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topics = [
        NewTopic("orders", PARTITIONS, 1, config={"retention.ms": "-1"}),
        NewTopic("payments", PARTITIONS, 1),
        NewTopic("table", 1, 1, config=cleaned | {"delete.retention.ms": "100"}),
    ]
    for created in admin.create_topics(topics).values():
        created.result()
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True})
        for number in range(120):
            headers: list[Any] = [("n", str(number).encode()), ("empty", None)] if number % 3 else []
            producer.produce("orders", f"{codec} {number}" * 5, f"k{number % 7}", number % PARTITIONS, headers=headers)
            producer.produce("table", f"{codec} {number}" if number % 11 else None, f"k{number % 7}")
        producer.flush()
    write_transactions(bootstrap, turns)


def write_transactions(bootstrap: str, turns: int) -> None:
    """Every second transaction is aborted, the last one, too."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "payments", "compression.type": "lz4"})
    producer.init_transactions()
    for turn in range(turns):
        producer.begin_transaction()
        for number in range(30):
            producer.produce("payments", f"payment {turn} {number}", f"k{number % 5}", number % PARTITIONS)
        producer.flush()
        if turn % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def read(config: Mapping[str, str], topic: str, partition: int) -> tuple[list[Row], int, int]:
    """The records of a partition as an application gets them with read_committed; its log start and end, which the
    consumer's position reaches.
    """
    own = {"group.id": "reader", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({**config, **own, "enable.partition.eof": True})
    try:
        place = TopicPartition(topic, partition)
        start, end = consumer.get_watermark_offsets(place, timeout=EVERY_SECONDS)
        consumer.assign([TopicPartition(topic, partition, start)])
        rows: list[Row] = []
        while True:
            message = consumer.poll(EVERY_SECONDS)
            assert message is not None, (topic, partition)
            if message.error():
                break
            rows.append((message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers()))
        assert not end or consumer.position([place])[0].offset == end
        return rows, start, end
    finally:
        consumer.close()
