"""Stored bytes by topic and in all, for /metrics: exported by the active controller alone.

Place: a row of controller.py's table; in a separate task, as consumer_lag.py.
Invariant: at most `topic.metrics.max` topics have a label, the largest ones; the others are one sum, so the sum over
all labels is that of the cluster. One statement per pause of the step, none on standbys, which show nothing.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.topic_traffic import OTHER_TOPICS
from headrace.metastore.api.reports import ReportApi, TopicSize
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


class TopicSizes:
    """One per candidate."""

    def __init__(self, api: ReportApi, topics_max: int, registry: CollectorRegistry) -> None:
        self._api, self._topics_max = api, topics_max
        self._is_active = False
        self._sizes = Gauge(
            "headrace_topic_stored_bytes",
            "Bytes of a topic's stored batches, on the active controller; small topics are one sum",
            ["topic"],
            registry=registry,
        )
        self._total = Gauge(
            "headrace_stored_bytes",
            "Bytes of the stored batches of all topics, on the active controller; elsewhere absent",
            ["scope"],
            registry=registry,
        )

    def judge(self, _: MetadataImage) -> bool:
        """Return whether sizes are exported."""
        return self._topics_max > 0

    async def refresh(self, _: int, image: MetadataImage, __: bool) -> None:
        """Show the sizes as of now; keep those of the last time if the metastore does not say."""
        self._is_active = True
        try:
            sizes = await self._api.topic_sizes(self._topics_max)
        except HeadraceError as error:
            logger.warning("cannot read the sizes of topics: error=%s", error)
            return
        if self._is_active:
            self._show(image, sizes)

    def stand_by(self) -> None:
        """Show nothing, also if an answer comes later."""
        self._is_active = False
        self._sizes.clear()
        self._total.clear()

    def _show(self, image: MetadataImage, sizes: list[TopicSize]) -> None:
        """Replace the previous values."""
        self._sizes.clear()
        total = sizes[0].total_bytes if sizes else 0
        self._total.labels("cluster").set(total)
        named = {each.topic_id: each for each in sizes if each.topic_id in image.topics_by_id}
        for topic_id, each in named.items():
            self._sizes.labels(image.topics_by_id[topic_id].name).set(each.size_bytes)
        self._sizes.labels(OTHER_TOPICS).set(total - sum(each.size_bytes for each in named.values()))
