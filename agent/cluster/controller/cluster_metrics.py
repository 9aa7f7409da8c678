"""Metrics that the active controller alone exports, so that each series is there once: lag of groups, size of topics.

Place: rows of controller.py's table; in separate tasks, so that a slow report delays no fencing.
Invariant: at most `consumer.lag.metrics.max` series of lag, those with the largest; at most `topic.metrics.max`
topics have a label, the largest ones, and the others are one sum, so the sum over all labels is that of the cluster.
One statement per pause of a step, none on standbys. A controller that is not active shows nothing, so a takeover
leaves no second, older value.
Lag in seconds is how old the extent with a pair's next record is, by its newest timestamp: the record is at least so
old (decisions/0061).
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.topic_traffic import OTHER_TOPICS
from headrace.metastore.api.reports import ConsumerLag, ReportApi, TopicSize
from headrace.metastore.keys import split_partition_key
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


class ConsumerLags:
    """One per candidate."""

    def __init__(self, api: ReportApi, pairs_max: int, registry: CollectorRegistry) -> None:
        self._api, self._pairs_max = api, pairs_max
        self._is_active = False
        self._lag = Gauge(
            "headrace_consumer_lag_records",
            "Offsets between a group's committed offset and the high watermark, on the active controller",
            ["group", "topic", "partition"],
            registry=registry,
        )
        self._seconds = Gauge(
            "headrace_consumer_lag_seconds",
            "Least age of a group's next record, on the active controller",
            ["group", "topic", "partition"],
            registry=registry,
        )
        self._omitted = Gauge(
            "headrace_consumer_lag_omitted",
            "Pairs of group and partition beyond consumer.lag.metrics.max, without such a series",
            registry=registry,
        )

    def judge(self, _: MetadataImage) -> bool:
        """Return whether lags are exported."""
        return self._pairs_max > 0

    async def refresh(self, _: int, image: MetadataImage, __: bool) -> None:
        """Show the lags as of now; nothing if the metastore does not say."""
        self._is_active = True
        try:
            lags = await self._api.consumer_lags(self._pairs_max)
        except HeadraceError as error:
            logger.warning("cannot read the lag of consumer groups: error=%s", error)
            lags = []
        if self._is_active:
            self._show(image, lags)

    def stand_by(self) -> None:
        """Show nothing, also if an answer comes later."""
        self._is_active = False
        self._show(MetadataImage(), [])

    def _show(self, image: MetadataImage, lags: list[ConsumerLag]) -> None:
        """Replaces the previous values."""
        self._lag.clear()
        self._seconds.clear()
        topics = image.topics_by_number
        for lag in lags:
            number, index = split_partition_key(lag.partition_key)
            if number in topics:
                pair = (lag.group_id, topics[number].name, str(index))
                self._lag.labels(*pair).set(lag.records)
                self._seconds.labels(*pair).set(lag.age_ms / 1000)
        self._omitted.set(lags[0].pairs - len(lags) if lags else 0)
