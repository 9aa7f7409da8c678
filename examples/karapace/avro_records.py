"""Records in Avro, with a schema that the registry has already: python avro_records.py cluster.json registry.json
TOPIC COUNT.

Needs the package confluent-kafka[avro,schemaregistry]. The newest schema of the subject TOPIC-value has the fields
`id` and `item`. Nothing is registered here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

SECONDS_MAX = 120


def main(cluster_file: str, registry_file: str, topic: str, count: int) -> None:
    """Write the records, read the topic from its start, and print what was read, a line of JSON each."""
    cluster = json.loads(Path(cluster_file).read_text())
    registry = SchemaRegistryClient(json.loads(Path(registry_file).read_text()))
    value = SerializationContext(topic, MessageField.VALUE)

    serialize = AvroSerializer(registry, conf={"auto.register.schemas": False, "use.latest.version": True})
    producer = Producer(cluster)
    for number in range(count):
        producer.produce(topic, serialize({"id": number, "item": f"item {number}"}, value))
    if producer.flush(SECONDS_MAX):
        raise SystemExit("not every record was acknowledged")

    deserialize = AvroDeserializer(registry)
    consumer = Consumer(cluster | {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    for _ in range(count):
        message = consumer.poll(SECONDS_MAX)
        if message is None or message.error():
            raise SystemExit(f"no record: {message and message.error()}")
        print(json.dumps(deserialize(message.value(), value)))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
