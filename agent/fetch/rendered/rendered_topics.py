"""The topics that this agent renders instead of reading segment files, by name and id.

Place: asked by handler.py and list_offsets.py before the read path plan -> locate -> read.
Invariant: the topics are those of metastore/segment_logs/topics.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.rendered.lifecycle_topic import AuditTopic, RemoteLogTopic
from headrace.agent.fetch.rendered.metadata_topic import MetadataTopic
from headrace.agent.fetch.rendered.segment_log_ends import KnownEnds
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.metastore.segment_logs.topics import AUDIT_TOPIC, REMOTE_LOG_TOPIC, rendered_topic
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore


class RenderedTopic(Protocol):
    """One topic."""

    follows_feed: bool
    """Whether its news is in the agent's image, which the feed advances."""

    async def has_news(self, partition: FetchPartition) -> bool:
        """Return whether a fetch would return records, as far as this agent knows; never waits for more than one
        query.
        """

    async def fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the requested offset on; does not wait for records."""

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps."""


class RenderedTopics:
    """All that this agent serves."""

    def __init__(self, by_name: Mapping[str, RenderedTopic]) -> None:
        self._by_name = by_name

    def find(self, name_or_id: str | uuid.UUID) -> RenderedTopic | None:
        """The topic of this name or id; None for a stored topic, and if this agent renders none."""
        topic = rendered_topic(name_or_id)
        return None if topic is None else self._by_name.get(topic.name)


def rendered_topics(metastore: Metastore, store: ObjectStore, view: ClusterView, clock: Clock) -> RenderedTopics:
    """The metadata log and both lifecycle logs. `store`: of the older part of the audit trail."""
    ends = KnownEnds(metastore.segment_logs, clock)
    return RenderedTopics(
        {
            METADATA_TOPIC: MetadataTopic(metastore.cluster, view),
            REMOTE_LOG_TOPIC: RemoteLogTopic(metastore.segment_logs, view, ends),
            AUDIT_TOPIC: AuditTopic(metastore.segment_logs, view, ends, store),
        }
    )
