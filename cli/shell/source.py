"""The source of the shell's image: a metastore, a running cluster, or a snapshot file.

Place: called once, before the first command; only reads.
Invariant: the image belongs to one offset of the log and does not change while the user browses it.
"""

from __future__ import annotations

from pathlib import Path

from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v0.request import FetchSnapshotRequest, PartitionSnapshot, SnapshotId, TopicSnapshot
from kio.schema.fetch_snapshot.v0.response import FetchSnapshotResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets, partitions_of
from headrace.cli.client.records import fetch
from headrace.cli.client.transport import ClientConfig, ask, client_config
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, NEWEST_SNAPSHOT
from headrace.metastore.log.replay import ImageBuilder, apply
from headrace.metastore.log.snapshot import load_snapshot
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.reader import walk_batches


async def image_from_metastore(settings: Settings) -> MetadataImage:
    """The image at the end of the log. Errors as PostgresMetastore.open."""
    if not settings.metastore_url:
        raise ConfigError("set --snapshot, --controllers or --metastore-url")
    from headrace.metastore.postgres.store import PostgresMetastore  # here: the other sources need no Postgres

    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        return await load_image(metastore)
    finally:
        await metastore.close()


def image_from_cluster(controllers: str) -> MetadataImage:
    """The image at the current end of the log: the newest snapshot, if the start of the log was truncated, and the
    rest of `__cluster_metadata`. UnavailableError if no server answers, other errors as `require`.
    """
    config = client_config(controllers, None)
    partition = (METADATA_TOPIC, 0)
    with KafkaCluster.of(config) as cluster:
        leader = partitions_of(cluster, [METADATA_TOPIC])[partition]
        start, end = (list_offsets(cluster, {partition: at})[partition] for at in (EARLIEST, LATEST))
        image = _newest_snapshot(config) if start > 0 else MetadataImage()
        while image.offset < end:
            answered = fetch(cluster, leader, METADATA_TOPIC, {0: image.offset})
            records = [record.value or b"" for _, found, _ in answered for record in found]
            if not records:
                raise UnavailableError(f"the log ended early: offset={image.offset} end={end}")
            image = apply(image, records)
    return image


def _newest_snapshot(config: ClientConfig) -> MetadataImage:
    """The image of the newest snapshot, fetched in pieces."""
    data, end_offset, size = b"", NEWEST_SNAPSHOT, 1
    while len(data) < size:
        wanted = PartitionSnapshot(
            partition=i32(0),
            current_leader_epoch=i32(-1),
            snapshot_id=SnapshotId(end_offset=i64(end_offset), epoch=i32(0)),
            position=i64(len(data)),
        )
        topic = TopicSnapshot(name=TopicName(METADATA_TOPIC), partitions=(wanted,))
        answer = ask(config, FetchSnapshotRequest(topics=(topic,)), FetchSnapshotResponse)
        found = answer.topics[0].partitions[0]
        if found.error_code is not ErrorCode.none:
            raise UnavailableError(f"cannot fetch metadata snapshot: {found.error_code.name}")
        end_offset, size = found.snapshot_id.end_offset, found.size
        data += found.unaligned_records
    builder = ImageBuilder(MetadataImage())
    for position, header in walk_batches(data):
        batch = memoryview(data)[position : position + header.size]
        builder.add(record.value or b"" for record in decode_records(batch))
    builder.offset = end_offset
    return builder.finish()


def image_from_file(path: Path, max_mib: int) -> MetadataImage:
    """The image in a snapshot file. InvalidError if it cannot be read or unpacks to more than `max_mib` MiB,
    CorruptError if it is corrupt.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidError(f"cannot read: {path}: {error.strerror}") from error
    return load_snapshot(data, max_mib * 1024 * 1024)
