"""Client quotas composed: the enforcer on the listener, who uses how much, the exchange with other agents.

Place: created by agent/serve/broker.py. QuotaExchange is a task of each agent: agents tell each other what they used
of shared limits, by way of the metastore, and which share of a limit follows from it. Reports and shares are pure.
Invariant: the listener asks the enforcer only while some client has a quota; what clients use is always counted.
Nothing is sent while no shared quota is set. An agent reports totals, so a lost or repeated report changes nothing,
and a failed exchange leaves the shares as they are. A bucket that was dropped and made again begins at 0, under
another generation. An agent that does not report any more leaves its share to the others after REPORT_SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.access.quotas.enforcement import MutationQuotas, QuotaEnforcer, QuotaMetrics, mutation_quotas
from headrace.agent.access.quotas.limits import SHARED, BucketKey, Limit, SharedBucket
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.process_context import ProcessContext
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

ENTRIES_MAX = 1_000
"""Limits in one report: those that were used most."""
REPORT_CHARACTERS = 256 * 1024
"""Largest number of characters of one report: a client id may have 32,767 bytes. Limits that do not fit are left
out.
"""
_FORGET_SECONDS = 60.0
_LEAST_SHARE = 0.01


class Use(NamedTuple):
    """One limit at one agent: what it used since the generation began, and whether clients wait for it."""

    generation: int
    used: float
    is_throttled: bool


Report = Mapping[BucketKey, Use]


class OthersUse(NamedTuple):
    """Use of one limit by all other agents since the last report.

    `unthrottled` is the part of `used` by agents that throttle no client. `throttled_agents` counts the others.
    """

    used: float
    unthrottled: float
    throttled_agents: int


NO_USE = OthersUse(0.0, 0.0, 0)


def encode_report(report: Report) -> str:
    """Encode a report as JSON: a list per limit."""
    most = sorted(report.items(), key=lambda entry: -entry[1].used)[:ENTRIES_MAX]
    entries, left = [], REPORT_CHARACTERS
    for key, use in most:
        entry = json.dumps([*key, *use])
        if len(entry) < left:
            left -= len(entry) + len(", ")
            entries.append(entry)
    return f"[{', '.join(entries)}]"


def decode_report(text: str) -> dict[BucketKey, Use]:
    """Return what `encode_report` wrote, also a newer one that has more fields."""
    return {BucketKey(*entry[:3]): Use(*entry[3:6]) for entry in json.loads(text)}


class Neighbours:
    """What other agents reported so far."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, BucketKey], tuple[Use, float]] = {}
        self._known: set[int] = set()

    def heard(self, reports: Mapping[int, Report], now: float) -> dict[BucketKey, OthersUse]:
        """Return what they used since the last call, from all their newest reports. The first report of an agent
        counts as 0: it does not say since when.
        """
        found: dict[BucketKey, list[tuple[float, bool]]] = {}
        for node_id, report in reports.items():
            for key, use in report.items():
                used = self._since_last(node_id, key, use)
                self._last[node_id, key] = (use, now)
                if used or use.is_throttled:
                    found.setdefault(key, []).append((used, use.is_throttled))
        self._known = set(reports)
        for entry in [entry for entry, (_, at) in self._last.items() if now - at > _FORGET_SECONDS]:
            del self._last[entry]
        return {key: _sum(uses) for key, uses in found.items()}

    def _since_last(self, node_id: int, key: BucketKey, use: Use) -> float:
        before = self._last.get((node_id, key))
        if before is None:
            return use.used if node_id in self._known else 0.0
        return use.used - before[0].used if before[0].generation == use.generation else use.used


def own_share(rate: float, others: OthersUse, seconds: float) -> float:
    """This agent's share of the rate: agents at which clients wait split equally what the others leave."""
    free = rate - others.unthrottled / seconds if seconds > 0 else rate
    return max(free, rate * _LEAST_SHARE) / (1 + others.throttled_agents)


def _sum(uses: Iterable[tuple[float, bool]]) -> OthersUse:
    used = unthrottled = 0.0
    throttled = 0
    for amount, is_throttled in uses:
        used += amount
        throttled += is_throttled
        unthrottled += 0.0 if is_throttled else amount
    return OthersUse(used, unthrottled, throttled)


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


class LimitedListener(Protocol):
    """The listener as quotas see it."""

    def limit_connections(self, is_in_quota: Callable[[str], bool]) -> None:
        """Ask before a client's address gets one more connection."""

    def limit_clients(self, quotas: QuotaEnforcer | None) -> None:
        """Ask the enforcer about each request; None: about none."""

    def count_clients(self, traffic: ClientTraffic) -> None:
        """Count the requests and answers of each client."""


class QuotaService:
    """`on_image` after each change of the image; `run` while the agent serves."""

    def __init__(
        self,
        context: ProcessContext,
        listener: LimitedListener,
        own_node_id: Callable[[], int | None],
    ) -> None:
        clock, registry = context.clock, context.registry
        metrics = QuotaMetrics(registry)
        self._listener = listener
        self._enforcer = QuotaEnforcer(clock, metrics, self._enforce)
        self._exchange = QuotaExchange(
            self._enforcer, context.metastore.cluster, own_node_id, metrics, clock, context.rng
        )
        self._traffic = ClientTraffic(context.settings.client_metrics_max, registry)
        if self._traffic.is_on:
            listener.count_clients(self._traffic)
        listener.limit_connections(self._enforcer.may_connect)

    def memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "quota_clients": lambda: self._enforcer.in_use_bytes,
            "client_traffic": lambda: self._traffic.in_use_bytes,
        }

    @property
    def mutations(self) -> MutationQuotas:
        """The quotas of changes, for the handlers that create and delete partitions."""
        return mutation_quotas(self._enforcer)

    def on_image(self, image: MetadataImage) -> None:
        """Take over its quotas."""
        self._enforcer.on_image(image)

    async def run(self) -> None:
        """Share limits with the other agents, until cancelled."""
        await self._exchange.run()

    def _enforce(self, quotas: QuotaEnforcer | None) -> None:
        self._listener.limit_clients(quotas)
        self._exchange.on_quotas()
