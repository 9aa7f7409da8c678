"""Lag of consumer groups, for /metrics: exported by the active controller alone, so that each pair is there once.

Place: a row of controller.py's table; in a separate task, so that a slow report delays no fencing.
Invariant: at most `consumer.lag.metrics.max` series, those with the largest lag; one statement per pause of the
step, none on standbys. A controller that is not active shows nothing, so a takeover leaves no second, older value.
Lag in seconds is how old the extent with a pair's next record is, by its newest timestamp: the record is at least so
old (decisions/0061).
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.reports import ConsumerLag, ReportApi
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


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
