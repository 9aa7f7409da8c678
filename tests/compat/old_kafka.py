"""A Kafka as a team has it: ten topics, five groups, users with passwords, ACLs and quotas; and a shop that writes.

Place: used by test_migration.py, which moves it by the commands of docs/start/MIGRATE.md.
Invariant: records are written and read by librdkafka: no code of links takes part.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.cli.main import main
from tests.compat.link_source import EVERY_SECONDS, PARTITIONS, fill

USERS = {"billing": ScramMechanism.SCRAM_SHA_512, "shop": ScramMechanism.SCRAM_SHA_256}
PASSWORDS = {"billing": "billing's password", "shop": "shop's password", "link": "a password"}
FILLED = ("orders", "payments", "table")
OTHERS = ("orders.eu", "orders.us", "clicks", "audit", "profiles", "empty", "metrics")
TOPICS = (*FILLED, *OTHERS)
GROUPS = {
    "billing": "orders.eu",
    "shipping": "orders.eu",
    "report": "orders.us",
    "funnel": "clicks",
    "auditors": "audit",
}
"""The topic that each group reads."""
RECORDS = 300
READ = 90
"""Records that each group read before the move."""
PAUSE_SECONDS = 0.02


def furnish(bootstrap: str) -> None:
    """Give the cluster everything; `bootstrap` is of the listener without a login."""
    fill(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    compacted = {"cleanup.policy": "compact", "compression.zstd.level": "9"}
    new = [NewTopic(name, PARTITIONS, 1, config=compacted if name == "profiles" else {}) for name in OTHERS]
    for created in admin.create_topics(new).values():
        created.result()
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for name in (each for each in OTHERS if each not in ("empty", "profiles")):
        for number in range(RECORDS):
            producer.produce(name, f"{name} {number}", f"k{number % 17}", number % PARTITIONS)
    for number in range(RECORDS):
        producer.produce("profiles", f"profile {number}", f"k{number % 17}", number % PARTITIONS)
    assert producer.flush(EVERY_SECONDS) == 0
    for user, mechanism in USERS.items():
        wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), PASSWORDS[user].encode())
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result()
    for made in admin.create_acls([*_acls()]).values():
        made.result()
    limits = ("--set", "producer_byte_rate=50000000")
    assert main(["quotas", "alter", "--user", "shop", *limits, "-b", bootstrap]) == 0
    for number, (group, topic) in enumerate(GROUPS.items()):
        with Reader({"bootstrap.servers": bootstrap}, group, topic, is_new=number % 2 == 1) as reader:
            reader.read(READ)


def _acls() -> list[AclBinding]:
    rights = [
        (ResourceType.TOPIC, "orders.", ResourcePatternType.PREFIXED, "billing", AclOperation.READ),
        (ResourceType.GROUP, "billing", ResourcePatternType.LITERAL, "billing", AclOperation.READ),
        (ResourceType.TOPIC, "orders.eu", ResourcePatternType.LITERAL, "shop", AclOperation.WRITE),
        (ResourceType.TOPIC, "orders.us", ResourcePatternType.LITERAL, "shop", AclOperation.WRITE),
    ]
    return [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, user, operation in rights
    ]


class Reader:
    """A member of a group that commits what it read; use it with `with`."""

    def __init__(self, config: Mapping[str, Any], group: str, topic: str, *, is_new: bool = False) -> None:
        """`is_new`: it takes part by the protocol of KIP-848."""
        own: dict[str, Any] = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        own |= {"group.protocol": "consumer"} if is_new else {}
        self._consumer = Consumer({**config, **own})
        self._topic = topic
        self.seen: Counter[tuple[int, int]] = Counter()
        """(partition, offset) of each record, and how often it was read."""
        self.values: Counter[str] = Counter()

    def __enter__(self) -> Reader:
        self._consumer.subscribe([self._topic])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, count: int) -> None:
        """Read so many records, and commit."""
        for _ in range(count):
            message = self._consumer.poll(EVERY_SECONDS)
            assert message is not None, f"{self._topic} has no further record"
            assert not message.error(), message.error()
            self.seen[int(message.partition() or 0), int(message.offset() or 0)] += 1
            self.values[(message.value() or b"").decode()] += 1
        self._consumer.commit(asynchronous=False)


def committed(config: Mapping[str, Any], group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group, by partition."""
    consumer = Consumer({**config, "group.id": group})
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(places, EVERY_SECONDS)}
    finally:
        consumer.close()


class Shop:
    """Sends orders, one after another, until it is stopped or refused; what was acknowledged is known."""

    def __init__(self, config: Mapping[str, Any], topic: str, name: str) -> None:
        """`name`: what its records begin with."""
        self._producer = Producer({**config, "enable.idempotence": True, "linger.ms": 5})
        self._topic, self._name = topic, name
        self.acknowledged: list[str] = []
        self.refusals: list[KafkaError] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when everything was acknowledged or refused."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(EVERY_SECONDS)

    def _send(self) -> None:
        number = 0
        while not self._stop.is_set() and not self.refusals:
            try:
                self._producer.produce(self._topic, f"{self._name} {number}", f"k{number}", on_delivery=self._note)
            except KafkaException as error:  # what was refused before decides what is refused now
                self.refusals.append(error.args[0])
            self._producer.poll(0)
            number += 1
            time.sleep(PAUSE_SECONDS)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.value() or b"").decode())
        else:
            self.refusals.append(error)


def scram_file(folder: Path, certificate: Path) -> Path:
    """The `old.properties` of the page."""
    file = folder / "old.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=link\n"
        f"sasl.password={PASSWORDS['link']}\nssl.truststore.location={certificate}\n"
    )
    return file
