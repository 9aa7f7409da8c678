"""The topics that a write may go to, and their rules for new records.

Place: read by the driver when a write is planned, sent to every task.
Invariant: sizes, keys, times and codec are those of the topic's configs, as agents apply them
(agent/produce/validate.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.config.settings import Settings
from headrace.metastore.keys import partition_key
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.storage.errors import NotFoundError
from headrace.storage.records.compression import Codec

_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec}}


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTopic:
    """One incarnation of a topic. Times in ms, sizes in bytes."""

    name: str
    topic_id: uuid.UUID
    topic_number: int
    initial_partitions: int
    partitions: int
    """Those that take records: the ones with a lower index."""
    max_message_bytes: int
    codec: Codec | None
    """None: the writer's."""
    needs_keys: bool
    stamps_append_time: bool
    behind_max_ms: int
    ahead_max_ms: int

    def key(self, partition: int) -> int:
        """Return the key of a partition that exists."""
        return partition_key(self.topic_number, partition)


def writable_topics(
    image: MetadataImage, settings: Settings, names: Iterable[str] | None
) -> Mapping[str, WritableTopic]:
    """The named topics, or all. NotFoundError names one that does not exist."""
    configs = EffectiveConfigs(settings)
    if names is None:
        return {name: _writable(image, configs, topic) for name, topic in image.topics_by_name.items()}
    found = {}
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            raise NotFoundError(f"topic does not exist: topic={name}")
        found[name] = _writable(image, configs, topic)
    return found


def _writable(image: MetadataImage, configs: EffectiveConfigs, topic: TopicImage) -> WritableTopic:
    def value(name: str) -> str:
        return configs.topic_value(image, topic.name, name)

    counts = topic.ordered_partitions
    return WritableTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        topic_number=topic.topic_number,
        initial_partitions=counts.initial,
        partitions=counts.undeleted,
        max_message_bytes=int(value("max.message.bytes")),
        codec=_CODECS.get(value("compression.type")),
        needs_keys="compact" in value("cleanup.policy"),
        stamps_append_time=value("message.timestamp.type") == "LogAppendTime",
        behind_max_ms=int(value("message.timestamp.before.max.ms")),
        ahead_max_ms=int(value("message.timestamp.after.max.ms")),
    )
