"""The two lifecycle topics as clients see them: names, ids, configs.

Place: with the metadata log's topic in metastore/segment_logs/rendered_topics.py; agents render them from tables.
Invariant: no topic of a user has these names, and clients cannot produce to them.
Source: KAFKA-20033, "Topics and Configurations"; docs/decisions/0048.
"""

from __future__ import annotations

import uuid

from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.log.image import TopicImage

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
