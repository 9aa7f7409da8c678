"""Where the shell's image comes from: a metastore, a running cluster, or a snapshot file.

Place: asked once, before the first command.
Invariant: the image belongs to one offset of the log and does not move while somebody looks at it. If
the process dies here nothing is lost: it only reads.
"""

from __future__ import annotations

from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from agent.cluster.metadata_topic import METADATA_TOPIC
from cli.kafka_client import parse_servers
from config.load import ConfigError
from config.settings import Settings
from metastore.log.image import MetadataImage
from metastore.log.replay import apply
from metastore.log.snapshot import load_snapshot
from metastore.postgres.store import PostgresMetastore
from storage.errors import InvalidError, UnavailableError

POLL_MS = 5_000


async def image_from_metastore(settings: Settings) -> MetadataImage:
    """The image at the log's head. Errors as PostgresMetastore.open."""
    if not settings.metastore_url:
        raise ConfigError("name a --snapshot, --controllers or --metastore-url")
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        return await metastore.load_image()
    finally:
        await metastore.close()


async def image_from_cluster(controllers: str) -> MetadataImage:
    """The image at the head that the cluster has now, read as a consumer of `__cluster_metadata`."""
    servers = [f"{host}:{port}" for host, port in parse_servers(controllers)]
    partition = TopicPartition(METADATA_TOPIC, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, request_timeout_ms=20_000)
    image = MetadataImage()
    try:
        await consumer.start()
        consumer.assign([partition])
        start = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        if start > 0:
            raise InvalidError(f"the log begins at {start}, after a snapshot: use --metastore-url or --snapshot")
        consumer.seek(partition, 0)
        while image.offset < end:
            batches = await consumer.getmany(partition, timeout_ms=POLL_MS)
            records = [record.value for record in batches.get(partition, ())]
            if not records:
                raise UnavailableError(f"the log stopped short: offset={image.offset} end={end}")
            image = apply(image, records)
        return image
    except (KafkaError, OSError) as error:
        raise UnavailableError(f"cluster not reached: {controllers}: {error}") from error
    finally:
        await consumer.stop()


def image_from_file(path: Path) -> MetadataImage:
    """The image in a snapshot file. InvalidError when it cannot be read, CorruptError when it is not sound."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidError(f"cannot read: {path}: {error.strerror}") from error
    return load_snapshot(data)
