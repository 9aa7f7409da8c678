"""A metadata snapshot: the fewest records that describe an image, in one file.

Place: made by the active controller and kept in the metastore; agents start from the newest one; `headrace shell
--snapshot` and `headrace dump-log` read the same bytes from a file. Tools load the image as of now from it; an agent
follows the log instead (agent/cluster/follower.py).
Invariant: a snapshot at an offset and the log from there on give the image that the whole log gives.
File, version 1, all numbers big-endian:
    magic "HRMS" · version uint16 · end offset int64 (the log below it is what this replaces) ·
    record count uint32 · CRC32C of the body uint32 · body length uint32 (uncompressed) ·
    zlib-compressed body: per record its length as unsigned varint, then its framed bytes
A partial file never passes: the length and the CRC cover the whole body. Unpacking uses no more memory than the
caller's limit, regardless of the bytes: a file of one megabyte may claim, or be, a thousand times as much.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterator

from crc32c import crc32c

from headrace.metastore.api.cluster import MetadataLogApi, MetadataRecord
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FailedReplicasRecord,
    FeatureLevelRecord,
    PartitionRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    TopicRecord,
    TopicWithFailures,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import (
    AliasPartitionRecord,
    ControlledShutdownRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    HideBrokerRecord,
)
from headrace.metastore.log.records import ancestor_epochs, encode_plain_partition, encode_record, split_record
from headrace.metastore.log.replay import ImageBuilder
from headrace.metastore.log.scram_keys import credentials_record
from headrace.metastore.log.wire import Reader, write_uvarint
from headrace.storage.errors import CorruptError, InvalidError

MAGIC = b"HRMS"
VERSION = 1
_HEADER = struct.Struct(">4sHqIII")
UNPACKED_BYTES_MAX = 1024 * 1024 * 1024
"""Most bytes of the unpacked records in memory, unless a caller sets another limit: 11 million partitions."""
FILE_UNPACKED_MIB = 64
"""The same for files that a tool is given: 700,000 partitions."""
_RECORD_OVERHEAD_BYTES = 48
"""Memory of one record besides its bytes."""
_FASTEST = 1
"""zlib level: partitions of a topic differ in a few bytes, so the fastest finds nearly all there is."""


def snapshot_records(image: MetadataImage) -> Iterator[bytes]:
    """The fewest framed records that describe the image, in an order in which they can be applied."""
    for name, levels in image.features.items():
        yield encode_record(
            FeatureLevelRecord(name=name, min_feature_level=levels.min_level, max_feature_level=levels.max_level)
        )
    for topic in image.topics_by_number.values():
        yield from topic_records(topic)
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield encode_record(
                ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
            )
    for node_id, broker_epoch in image.unregistered.items():
        yield from map(encode_record, _unregistered(node_id, broker_epoch))
    for agent in image.agents.values():
        yield from map(encode_record, _agent(agent))
    yield from map(encode_record, _security(image))


def encode_snapshot(image: MetadataImage) -> bytes:
    """The snapshot file of an image. CPU-bound: keep it off a loop that serves."""
    body = bytearray()
    count = 0
    for record in snapshot_records(image):
        write_uvarint(body, len(record))
        body += record
        count += 1
    packed = zlib.compress(body, _FASTEST)
    checksum = _checksum(image.offset, count, len(body), packed)
    return _HEADER.pack(MAGIC, VERSION, image.offset, count, checksum, len(body)) + packed


def decode_snapshot(data: bytes, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> tuple[int, list[bytes]]:
    """(end offset, framed records).

    InvalidError for another kind of file, a newer version, or more than `unpacked_bytes_max` of records in memory;
    CorruptError for damage.
    """
    if len(data) < _HEADER.size or not data.startswith(MAGIC):
        raise InvalidError(f"not a metadata snapshot: size={len(data)}")
    _, version, end_offset, count, checksum, size = _HEADER.unpack_from(data)
    if version != VERSION:
        raise InvalidError(f"unknown metadata snapshot version: version={version}")
    packed = memoryview(data)[_HEADER.size :]
    if _checksum(end_offset, count, size, packed) != checksum:
        raise CorruptError(f"metadata snapshot is damaged: end_offset={end_offset} bytes={len(data)}")
    needed = size + count * _RECORD_OVERHEAD_BYTES
    if needed > unpacked_bytes_max:
        raise InvalidError(f"metadata snapshot too large to unpack: needed_bytes={needed} limit={unpacked_bytes_max}")
    return end_offset, _split(_unpacked(packed, size, end_offset), count)


def _unpacked(packed: memoryview, size: int, end_offset: int) -> bytes:
    """Exactly `size` bytes."""
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(packed, size) if size else b""
    except zlib.error as error:
        raise CorruptError(f"metadata snapshot does not unpack: end_offset={end_offset} {error}") from error
    if len(body) != size or (size and not unpacking.eof and unpacking.decompress(unpacking.unconsumed_tail, 1)):
        raise CorruptError(f"metadata snapshot of another size than claimed: end_offset={end_offset} claimed={size}")
    return body


def load_snapshot(data: bytes, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> MetadataImage:
    """The image that a snapshot file describes. Errors as decode_snapshot and replay.apply."""
    end_offset, records = decode_snapshot(data, unpacked_bytes_max)
    builder = ImageBuilder(MetadataImage())
    builder.add(records)
    builder.offset = end_offset
    return builder.finish()


def _checksum(end_offset: int, count: int, size: int, packed: bytes | memoryview) -> int:
    """CRC32C of the header, with zeros for this very field, and of the records as they are stored."""
    checksum: int = crc32c(packed, crc32c(_HEADER.pack(MAGIC, VERSION, end_offset, count, 0, size)))
    return checksum


def _split(body: bytes, count: int) -> list[bytes]:
    reader = Reader(body)
    records = [reader.take(reader.uvarint()) for _ in range(count)]
    if reader.position != len(body):
        raise CorruptError(f"metadata snapshot has surplus bytes: surplus={len(body) - reader.position}")
    return records


def topic_records(topic: TopicImage) -> Iterator[bytes]:
    """The framed records that describe one topic, its TopicRecord with its number first."""
    yield encode_record(
        TopicRecord(
            topic_name=topic.name,
            topic_id=topic.topic_id,
            initial_partition_count=topic.initial_partition_count,
            undeleted_partition_count=topic.undeleted_partition_count,
            topic_number=topic.topic_number,
            replication_factor=topic.replication_factor,
        )
    )
    special = topic.assignments.keys() | topic.created_from.keys() | topic.before_deletion.keys() | topic.removed
    for index, epoch in enumerate(topic.leader_epochs):
        if index in special:
            yield encode_record(_special_partition(topic, index))
        else:
            yield encode_plain_partition(index, topic.topic_id.bytes, epoch)
    for index, split in topic.splits.items():
        yield encode_record(split_record(topic.topic_id, index, split))
    if topic.doubling >= 0:
        yield encode_record(DoubleTopicRecord(topic_id=topic.topic_id, partition_count=topic.doubling))
    if topic.halving >= 0:
        yield encode_record(HalveTopicRecord(topic_id=topic.topic_id, partition_count=topic.halving))
    for index in sorted(topic.aliases):
        alias = AliasPartitionRecord(partition_id=index, topic_id=topic.topic_id, parent=topic.aliases[index])
        yield encode_record(alias)


def _special_partition(topic: TopicImage, index: int) -> PartitionRecord:
    assignment = topic.assignment(index)
    source, source_epoch = topic.created_from.get(index, (-1, -1))
    return PartitionRecord(
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=assignment.replicas,
        isr=(),
        removing_replicas=assignment.removing,
        adding_replicas=assignment.adding,
        leader_epoch=topic.leader_epochs[index],
        source=source,
        source_epoch=source_epoch,
        before_deletion=ancestor_epochs(topic.before_deletion.get(index, {})),
        is_removed=index in topic.removed,
    )


def _agent(agent: AgentImage) -> Iterator[MetadataRecord]:
    yield RegisterBrokerRecord(
        broker_id=agent.node_id,
        incarnation_id=agent.incarnation_id,
        broker_epoch=agent.broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in agent.listeners
        ),
        features=tuple(
            BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in agent.features.items()
        ),
        rack=agent.rack,
    )
    if not agent.fenced:
        yield UnfenceBrokerRecord(broker_id=agent.node_id, broker_epoch=agent.broker_epoch)
    if agent.leaving:
        yield ControlledShutdownRecord(broker_id=agent.node_id, broker_epoch=agent.broker_epoch)
    if agent.hidden:
        yield HideBrokerRecord(broker_id=agent.node_id, broker_epoch=agent.broker_epoch)


def _unregistered(node_id: int, broker_epoch: int) -> Iterator[MetadataRecord]:
    """An agent that came and went, for readers of any version."""
    yield RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=0),
        broker_epoch=broker_epoch,
        end_points=(BrokerEndpoint(name="", host="", port=0, security_protocol=0),),
        features=(),
        rack=None,
    )
    yield UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch)


def _security(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Everything that has nothing to do with topics and agents, and what agents failed at."""
    yield from image.access_controls
    for user, credentials in image.scram_credentials.items():
        yield credentials_record(user, credentials)
    yield from image.delegation_tokens.values()
    for entity, values in image.quotas.items():
        for key, value in values.items():
            yield QuotaRecord(entity=entity, key=key, value=value, remove=False)
    for node_id, failed in image.failed_replicas.items():
        topics = tuple(TopicWithFailures(topic_id=key, partitions=partitions) for key, partitions in failed.items())
        yield FailedReplicasRecord(broker_id=node_id, topics=topics)


async def load_image(log: MetadataLogApi) -> MetadataImage:
    """The image at the log's head: the newest snapshot, then the records after it."""
    newest = await log.newest_snapshot()
    builder = ImageBuilder(MetadataImage() if newest is None else load_snapshot(newest.data))
    while records := await log.read_metadata(builder.offset):
        builder.add(records)
    return builder.finish()
