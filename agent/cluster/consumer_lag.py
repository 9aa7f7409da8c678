"""Lag of consumer groups, for /metrics: exported by the active controller alone, so that each pair is there once.

Place: a part of controller.py's rounds; in a separate task, so that a slow report delays no fencing.
Invariant: at most `consumer.lag.metrics.max` series, those with the largest lag; one statement per INTERVAL_SECONDS,
none on standbys. A controller that is not active shows nothing, so a takeover leaves no second, older value.
Lag in seconds is not exported: it needs the time of the next record of each pair, a look-up per pair (decisions/0061).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.reports import ConsumerLag
from headrace.metastore.keys import split_partition_key
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0


class ConsumerLagApi(Protocol):
    """What it asks of the metastore."""

    async def consumer_lags(self, limit: int) -> list[ConsumerLag]:
        """See metastore.api.reports.PartitionReports."""


class ConsumerLags:
    """One per candidate; `step` is called in each round."""

    def __init__(
        self,
        api: ConsumerLagApi,
        follower: MetadataFollower,
        pairs_max: int,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._api, self._follower, self._pairs_max, self._clock = api, follower, pairs_max, clock
        self._next_look = 0.0
        self._look: asyncio.Task[None] | None = None
        self._is_active = False
        self._lag = Gauge(
            "headrace_consumer_lag_records",
            "Offsets between a group's committed offset and the high watermark, on the active controller",
            ["group", "topic", "partition"],
            registry=registry,
        )
        self._omitted = Gauge(
            "headrace_consumer_lag_omitted",
            "Pairs of group and partition without such a series, because there are more than consumer.lag.metrics.max",
            registry=registry,
        )

    def step(self, is_active: bool) -> None:
        """Ask if it is time to; show nothing unless active."""
        if self._is_active and not is_active:
            self._show([])
            self._next_look = 0.0
        self._is_active = is_active and self._pairs_max > 0
        now = self._clock.monotonic()
        if not self._is_active or now < self._next_look or (self._look is not None and not self._look.done()):
            return
        self._next_look = now + INTERVAL_SECONDS
        self._look = asyncio.create_task(self._refresh())

    async def close(self) -> None:
        """Safe in any state."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        self._show([])

    async def _refresh(self) -> None:
        try:
            lags = await self._api.consumer_lags(self._pairs_max)
        except HeadraceError as error:
            logger.warning("cannot read the lag of consumer groups: error=%s", error)
            lags = []
        if self._is_active:
            self._show(lags)

    def _show(self, lags: list[ConsumerLag]) -> None:
        """Replaces the previous values."""
        self._lag.clear()
        topics = self._follower.image.topics_by_number
        for lag in lags:
            number, index = split_partition_key(lag.partition_key)
            if number in topics:
                self._lag.labels(lag.group_id, topics[number].name, str(index)).set(lag.records)
        self._omitted.set(lags[0].pairs - len(lags) if lags else 0)
