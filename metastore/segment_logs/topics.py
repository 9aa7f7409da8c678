"""The topics that agents render from tables: the metadata log, two lifecycle logs.

Place: asked by every request that names a topic; the image of the cluster does not have them. The two lifecycle
topics have their names, ids and configs here.
Invariant of the lifecycle topics: no topic of a user has these names, and clients cannot produce to them.
Source: KAFKA-20033, "Topics and Configurations"; docs/decisions/0048.
Invariant of all rendered topics: their topic numbers are negative, so they share no partition key with a stored
topic. As in Kafka, the list of all topics does not show them.
"""

from __future__ import annotations

import uuid

from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC_IMAGE

REMOTE_LOG_TOPIC = "__remote_log_metadata"
AUDIT_TOPIC = "__remote_log_metadata_audit"


def _image(name: str, number: int) -> TopicImage:
    """Its id is the same in every cluster, as the metadata log's."""
    topic_id = uuid.uuid5(uuid.NAMESPACE_URL, f"headrace:{name}")
    return TopicImage(topic_id, number, name, METADATA_PARTITIONS, METADATA_PARTITIONS, (0,) * METADATA_PARTITIONS)


REMOTE_LOG_IMAGE = _image(REMOTE_LOG_TOPIC, -2)
AUDIT_IMAGE = _image(AUDIT_TOPIC, -3)


LIFECYCLE_TOPICS = (REMOTE_LOG_TOPIC, AUDIT_TOPIC)
DAY_MS = 86_400_000


def lifecycle_configs(
    topic: str, *, tombstone_retention_ms: int = DAY_MS, audit_retention_ms: int = 90 * DAY_MS
) -> dict[str, str]:
    """The topic's own configs. The defaults are those of the settings segments.tombstone.retention.ms and
    segments.audit.retention.ms.

    The tables hold only the latest record of a key at any time, so the compacted log has no dirty part and no
    segments: of its configs, delete.retention.ms alone has an effect.
    """
    if topic == AUDIT_TOPIC:
        return {"cleanup.policy": "delete", "retention.ms": str(audit_retention_ms)}
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": str(tombstone_retention_ms),
        "segment.ms": "3600000",
    }


RENDERED_TOPICS = (METADATA_TOPIC_IMAGE, REMOTE_LOG_IMAGE, AUDIT_IMAGE)
_FOUND: dict[str | uuid.UUID, TopicImage] = {topic.name: topic for topic in RENDERED_TOPICS} | {
    topic.topic_id: topic for topic in RENDERED_TOPICS
}


def rendered_topic(name_or_id: str | uuid.UUID | None) -> TopicImage | None:
    """The topic of this name or id if it is rendered, else None."""
    return None if name_or_id is None else _FOUND.get(name_or_id)
