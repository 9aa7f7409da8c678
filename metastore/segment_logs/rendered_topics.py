"""The topics that agents render from tables: the metadata log, and both lifecycle logs.

Place: asked by every request that names a topic; the image of the cluster does not have them.
Invariant: their topic numbers are negative, so they share no partition key with a stored topic. As in Kafka, the list
of all topics does not show them.
"""

from __future__ import annotations

import uuid

from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC_IMAGE
from headrace.metastore.segment_logs.topics import AUDIT_IMAGE, REMOTE_LOG_IMAGE

RENDERED_TOPICS = (METADATA_TOPIC_IMAGE, REMOTE_LOG_IMAGE, AUDIT_IMAGE)
_FOUND: dict[str | uuid.UUID, TopicImage] = {topic.name: topic for topic in RENDERED_TOPICS} | {
    topic.topic_id: topic for topic in RENDERED_TOPICS
}


def rendered_topic(name_or_id: str | uuid.UUID | None) -> TopicImage | None:
    """The topic of this name or id if it is rendered, else None."""
    return None if name_or_id is None else _FOUND.get(name_or_id)
