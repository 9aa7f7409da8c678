"""What a Metadata response says about a topic's partition counts to clients that ask for it.

Place: called by metadata.py; protocol/partition_counts.py has the bytes.
Source: KIP-253, protocol change 7; the two flags spare clients a request for configs.
"""

from __future__ import annotations

from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.shown_counts import initial_count, undeleted_count
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.partition_counts import TopicCounts


class CountsOfTopics:
    """Counts of partitions and replicas by the configs in effect."""

    def __init__(self, configs: EffectiveConfigs) -> None:
        self._configs = configs

    def __call__(self, image: MetadataImage, topic: TopicImage) -> TopicCounts:
        is_stored = rendered_topic(topic.name) is None
        return TopicCounts(
            topic.topic_id,
            initial_count(topic),
            undeleted_count(topic),
            tuple(topic.marked),
            is_ordered=is_stored and self._value(image, topic, "enable.ordered.delivery").lower() == "true",
            is_compacted=is_stored and "compact" in self._value(image, topic, "cleanup.policy"),
        )

    def _value(self, image: MetadataImage, topic: TopicImage, name: str) -> str:
        return self._configs.topic_value(image, topic.name, name)
