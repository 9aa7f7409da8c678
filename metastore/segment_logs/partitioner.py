"""Find where a partition's lifecycle records go: Kafka's RemoteLogMetadataTopicPartitioner.

Place: used when a record is appended, and by tools that read one partition's history.
Invariant: all records of a partition are in one metadata partition, so they are in order.
Source: KIP-405; Kafka 4.1, RemoteLogMetadataTopicPartitioner: murmur2 of Java's Objects.hash of the topic id's low
and high half and of the partition.
"""

from __future__ import annotations

import struct
import uuid

from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.partitions.murmur2 import key_hash

_MASK = 0xFFFFFFFF


def metadata_partition(topic_id: uuid.UUID, partition: int, partitions: int = METADATA_PARTITIONS) -> int:
    """The metadata partition, 0 to `partitions` - 1."""
    high, low = struct.unpack(">QQ", topic_id.bytes)
    hashed = 1
    for part in (_long_hash(low), _long_hash(high), partition):
        hashed = (31 * hashed + part) & _MASK
    return key_hash(struct.pack(">I", hashed)) % partitions


def _long_hash(value: int) -> int:
    """Java's Long.hashCode, as an unsigned number."""
    return (value ^ (value >> 32)) & _MASK
