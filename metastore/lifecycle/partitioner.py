"""Where a partition's lifecycle records go: Kafka's RemoteLogMetadataTopicPartitioner.

Place: used when a record is appended, and by tools that read one partition's history.
Invariant: all records of a partition are in one metadata partition, so they are in order.
Source: KIP-405; Kafka 4.1, RemoteLogMetadataTopicPartitioner: murmur2 of Java's Objects.hash of the topic id's low
and high half and of the partition.
"""

from __future__ import annotations

import struct
import uuid

from headrace.metastore.api.segments import METADATA_PARTITIONS

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def metadata_partition(topic_id: uuid.UUID, partition: int, partitions: int = METADATA_PARTITIONS) -> int:
    """The metadata partition, 0 to `partitions` - 1."""
    high, low = struct.unpack(">QQ", topic_id.bytes)
    hashed = 1
    for part in (_long_hash(low), _long_hash(high), partition):
        hashed = (31 * hashed + part) & _MASK
    return (_murmur2(struct.pack(">I", hashed)) & 0x7FFFFFFF) % partitions


def _long_hash(value: int) -> int:
    """Java's Long.hashCode, as an unsigned number."""
    return (value ^ (value >> 32)) & _MASK


def _murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2 of a whole number of 4-byte words, as an unsigned number."""
    hashed = _SEED ^ len(data)
    for (word,) in struct.iter_unpack("<I", data):
        word = word * _M & _MASK
        word = (word ^ (word >> 24)) * _M & _MASK
        hashed = hashed * _M & _MASK ^ word
    hashed = (hashed ^ (hashed >> 13)) * _M & _MASK
    return hashed ^ (hashed >> 15)
