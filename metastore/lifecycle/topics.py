"""The two lifecycle topics as clients see them: names, ids, configs.

Place: with the metadata log's topic in metastore/log/rendered_topics.py; agents render them from tables.
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


LIFECYCLE_CONFIGS = {
    REMOTE_LOG_TOPIC: {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "86400000",
        "segment.ms": "3600000",
    },
    AUDIT_TOPIC: {"cleanup.policy": "delete", "retention.ms": "2592000000"},
}
"""What DescribeConfigs says of the topics' own configs. The tables hold no older record of a key at any time, so the
log has no dirty part and no segments: of the compacted topic's configs only delete.retention.ms has an effect."""
