"""Agents tell each other what they used of shared limits, by way of the metastore.

Place: a task of each agent; nothing is sent while no shared quota is set.
Invariant: a failed exchange changes nothing: shares stay, and the next one brings the totals. An agent that does not
report any more leaves its share to the others after REPORT_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from headrace.agent.access.quotas.bucket import SharedBucket
from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.access.quotas.limits import SHARED, BucketKey, Limit
from headrace.agent.access.quotas.metrics import QuotaMetrics
from headrace.agent.access.quotas.sharing import (
    NO_USE,
    Neighbours,
    OthersUse,
    Report,
    Use,
    decode_report,
    encode_report,
    own_share,
)
from headrace.metastore.api.cluster import ClusterApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

EXCHANGE_SECONDS = 0.5


class QuotaExchange:
    """Quota exchange of one agent."""

    def __init__(
        self,
        enforcer: QuotaEnforcer,
        api: ClusterApi,
        own_node_id: Callable[[], int | None],
        metrics: QuotaMetrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._enforcer, self._api, self._own_node_id = enforcer, api, own_node_id
        self._metrics, self._clock, self._rng = metrics, clock, rng
        self._neighbours = Neighbours()
        self._heard_at = clock.monotonic()
        self._is_failing = False
        self._is_needed = asyncio.Event()

    def on_quotas(self) -> None:
        """Quotas were changed. The first exchange comes at once, before clients use much: the others count from it
        on."""
        if self._enforcer.table.kinds.isdisjoint(SHARED):
            self._is_needed.clear()
        else:
            self._is_needed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._is_needed.wait()
            await self.exchange()
            self._enforcer.drop_full_buckets()
            await self._clock.sleep(EXCHANGE_SECONDS * self._rng.uniform(0.9, 1.1))

    async def exchange(self) -> None:
        """Report, and hear the others. Nothing before this agent has joined the cluster."""
        node_id = self._own_node_id()
        if node_id is None:
            return
        try:
            answer = await self._api.exchange_quota_use(node_id, encode_report(self._report()))
        except HeadraceError as error:
            self._metrics.exchange_failures += 1
            if not self._is_failing:
                logger.warning("quota use not exchanged, shares stay as they are: error=%s", error)
            self._is_failing = True
            return
        self._is_failing = False
        now = self._clock.monotonic()
        heard = self._neighbours.heard({node_id: decode_report(text) for node_id, text in answer.items()}, now)
        self._correct(heard, now)

    def _report(self) -> Report:
        now = self._clock.monotonic()
        return {
            key: Use(bucket.generation, bucket.used, bucket.level(now) < 0)
            for key, bucket in self._enforcer.buckets()
            if isinstance(bucket, SharedBucket) and bucket.used
        }

    def _correct(self, heard: Mapping[BucketKey, OthersUse], now: float) -> None:
        for key in heard:
            rate = self._enforcer.table.rate_of(key)
            if rate is not None:
                self._enforcer.bucket(Limit(key, rate))  # so that its debt is known before a client comes here
        seconds = now - self._heard_at
        self._heard_at = now
        for key, bucket in self._enforcer.buckets():
            if isinstance(bucket, SharedBucket):
                others = heard.get(key, NO_USE)
                bucket.correct(others.used, own_share(bucket.rate, others, seconds), now)
