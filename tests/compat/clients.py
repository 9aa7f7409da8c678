"""Seven real Kafka clients behind one shape: produce N records to a topic, read N records of a topic.

A client that is not installed is left out, with the reason `missing`. Values are `<client>-<n>`, keys
`key-<n % 100>`. Every consumer reads from the beginning. Only gzip and no compression: what all can
read without further libraries (test_compressions.py has the rest).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka

from tests.compat import go_clients
from tests.examples import EXAMPLES
from tests.kafka_clients import KafkaClients
from tests.tools import GO_CLIENTS, KAFKAJS, why_missing

TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Client:
    """`produce(bootstrap, topic, count)` returns when all is acknowledged; `consume` returns the values it read."""

    name: str
    produce: Callable[[str, str, int], None]
    consume: Callable[[str, str, int], list[str]]
    tool: str | None = None
    """What it needs beyond the packages of Python."""

    @property
    def missing(self) -> str | None:
        """Return why it cannot run here."""
        return why_missing(self.tool) if self.tool else None


def pairs(name: str, count: int) -> list[tuple[bytes, bytes]]:
    """The records that a client sends."""
    return [(f"key-{n % 100}".encode(), f"{name}-{n}".encode()) for n in range(count)]


def _confluent_produce(bootstrap: str, topic: str, count: int) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "gzip"}
    )
    for key, value in pairs("confluent", count):
        producer.produce(topic, value=value, key=key, on_delivery=lambda error, _: _note(failures, error))
    left = producer.flush(TIMEOUT_SECONDS)
    assert (left, failures) == (0, [])


def _confluent_consume(bootstrap: str, topic: str, count: int) -> list[str]:
    messages = KafkaClients(bootstrap).read_in_group(topic, count, f"confluent-{topic}")
    return [(message.value() or b"").decode() for message in messages]


def _aiokafka_produce(bootstrap: str, topic: str, count: int) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        async with producer:
            futures = [await producer.send(topic, value, key) for key, value in pairs("aiokafka", count)]
            await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_SECONDS)

    asyncio.run(run())


def _aiokafka_consume(bootstrap: str, topic: str, count: int) -> list[str]:
    async def run() -> list[str]:
        values: list[str] = []
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=f"aiokafka-{topic}", auto_offset_reset="earliest"
        ) as consumer:
            while len(values) < count:
                got = await consumer.getmany(timeout_ms=TIMEOUT_SECONDS * 1000)
                assert got, f"nothing for {TIMEOUT_SECONDS} s after {len(values)} records"
                values += [record.value.decode() for batch in got.values() for record in batch]
        return values

    return asyncio.run(run())


def _kafka_python_produce(bootstrap: str, topic: str, count: int) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), compression_type="gzip", acks="all")
    futures = [producer.send(topic, value, key) for key, value in pairs("kafka_python", count)]
    producer.flush(TIMEOUT_SECONDS)
    for future in futures:
        future.get(TIMEOUT_SECONDS)
    producer.close()


def _kafka_python_consume(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=f"kafka-python-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_SECONDS * 1000,
    )
    values: list[str] = []
    for record in consumer:
        values.append(record.value.decode())
        if len(values) == count:
            break
    consumer.close()
    return values


def _kafkajs(mode: str, bootstrap: str, topic: str, count: int) -> dict[str, object]:
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("kafkajs_client.cjs")), mode, bootstrap, topic, str(count)],
        env=os.environ | {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def _kafkajs_produce(bootstrap: str, topic: str, count: int) -> None:
    assert _kafkajs("produce", bootstrap, topic, count)["records"] == count


def _kafkajs_consume(bootstrap: str, topic: str, count: int) -> list[str]:
    values = _kafkajs("consume", bootstrap, topic, count)["values"]
    assert isinstance(values, list)
    return values


def _kcat(arguments: list[str], stdin: str = "") -> str:
    """Run kcat with the properties of the example; `-b` comes before its address."""
    command = ["kcat", "-F", str(EXAMPLES / "kcat" / "kcat.conf"), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "CONFWARN" not in done.stderr
    return done.stdout


def _kcat_produce(bootstrap: str, topic: str, count: int) -> None:
    lines = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in pairs("kcat", count))
    _kcat(["-P", "-X", "enable.idempotence=true", "-b", bootstrap, "-t", topic, "-K", "\t"], lines)


def _kcat_consume(bootstrap: str, topic: str, count: int) -> list[str]:
    return _kcat(["-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-c", str(count), "-q"]).split()


CLIENTS = [
    Client("confluent", _confluent_produce, _confluent_consume),
    Client("aiokafka", _aiokafka_produce, _aiokafka_consume),
    Client("kafka_python", _kafka_python_produce, _kafka_python_consume),
    Client(
        "kafkajs",
        _kafkajs_produce,
        _kafkajs_consume,
        "kafkajs",
    ),
    Client(
        "kcat",
        _kcat_produce,
        _kcat_consume,
        "kcat",
    ),
    *(
        Client(
            tool.replace("-", "_"),
            partial(go_clients.produce, tool),
            partial(go_clients.consume, tool),
            tool,
        )
        for tool in GO_CLIENTS
    ),
]


def _note(failures: list[object], error: object) -> None:
    if error is not None:
        failures.append(error)
