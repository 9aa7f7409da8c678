"""Enforces client quotas on the requests of one agent.

Place: asked by the listener for each request while any quota is set, and by its admission for new connections.
CreateTopics, CreatePartitions and DeleteTopics ask MutationQuota topic by topic: controller_mutation_rate limits the
partitions that one request may create or delete. QuotaMetrics shows what is used.
Invariant: without quotas the listener does not ask at all. A use always counts, also of a request that fails.
What a client sent is counted when it arrives and what it gets when the answer is made; both before the throttle time
is computed, so that the connection is muted for as long as the answer says.
A topic is admitted as a whole while nothing is owed. From the version on that knows THROTTLING_QUOTA_EXCEEDED, the
others are refused with it and nothing happens to them; below it they are admitted, and the connection is throttled
for longer.
At most CLIENTS_MAX clients are named in metrics at a time, and names come from clients: Prometheus' client escapes
them. Kafka's names: `byte-rate`, `request-time` and `tokens` are `headrace_quota_used`, with the quota's key as a
label; `throttle-time` is `headrace_quota_throttle_time_seconds`.
Source: KIP-13, KIP-124 (request time), KIP-219 (answer at once, then mute), KIP-599 (mutations), KIP-612
(connections).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from itertools import islice
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.agent.access.quotas.limits import (
    BURST_SECONDS,
    CONNECTION,
    FETCH,
    MUTATION,
    MUTATION_BURST_SECONDS,
    PRODUCE,
    REQUEST,
    SHARED,
    Bucket,
    BucketKey,
    Limit,
    QuotaTable,
    SharedBucket,
)
from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.request import ANONYMOUS, Request, Response
from headrace.storage.clock import Clock

CLIENTS_MAX = 1_000
_LABELS = ["quota", "user", "client_id"]

Buckets = Callable[[], Iterator[tuple[BucketKey, Bucket]]]


class QuotaMetrics(Collector):
    """Quota metrics of one agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._buckets: Buckets = lambda: iter(())
        self._throttled: defaultdict[str, float] = defaultdict(float)
        self._times: defaultdict[str, int] = defaultdict(int)
        self.exchange_failures = 0
        registry.register(self)

    def watch(self, buckets: Buckets) -> None:
        """Read them when Prometheus asks."""
        self._buckets = buckets

    def throttled(self, key: BucketKey, seconds: float) -> None:
        """An answer said that its client is throttled for so long."""
        self._times[key.kind] += 1
        self._throttled[key.kind] += seconds

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape."""
        times = CounterMetricFamily("headrace_quota_throttled", "Answers with a throttle time.", labels=["quota"])
        seconds = CounterMetricFamily(
            "headrace_quota_throttle_time_seconds", "Sum of the throttle times in answers.", labels=["quota"]
        )
        for kind, count in list(self._times.items()):
            times.add_metric([kind], count)
            seconds.add_metric([kind], self._throttled[kind])
        yield times
        yield seconds
        used = CounterMetricFamily(
            "headrace_quota_used", "What a client used at this agent since it was last idle.", labels=_LABELS
        )
        share = GaugeMetricFamily(
            "headrace_quota_share", "This agent's share of a client's quota, per second.", labels=_LABELS
        )
        for key, bucket in islice(self._buckets(), CLIENTS_MAX):
            labels = [key.kind, key.user or "", key.client_id or ""]
            used.add_metric(labels, bucket.used)
            share.add_metric(labels, bucket.share)
        yield used
        yield share
        failures = CounterMetricFamily(
            "headrace_quota_exchange_failures", "Exchanges with other agents that failed: shares stay as they were."
        )
        failures.add_metric([], self.exchange_failures)
        yield failures


BUCKETS_MAX = 10_000
"""More clients than this at one time share one bucket per kind: names are free, memory is not."""
_CLIENTS_BYTES = REMEMBERED_BYTES["quota_clients"] * 2 // 3
_BUCKETS_BYTES = REMEMBERED_BYTES["quota_clients"] - _CLIENTS_BYTES
"""A client id may have 32,767 bytes: a client without room for its name has a share of the common bucket."""
_PERCENT = 100.0
_FETCH_KEYS, _PRODUCE_KEY = frozenset({int(ApiKey.FETCH), int(ApiKey.SHARE_FETCH)}), int(ApiKey.PRODUCE)
_UNLIMITED = frozenset({int(ApiKey.API_VERSIONS), int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
"""Before the client is known."""

ClientLimits = dict[str, BucketKey]


class RequestUse:
    """What one request used so far. For the listener. It holds keys, not buckets: while a request waits, an idle
    bucket may go, and a quota may change."""

    __slots__ = ("_enforcer", "_fetch", "_keys", "_time")

    def __init__(
        self, enforcer: QuotaEnforcer, keys: list[BucketKey], fetch: BucketKey | None, time: BucketKey | None
    ) -> None:
        """`keys`: all that apply. `fetch` gets the bytes of the answer, `time` the time on the event loop."""
        self._enforcer, self._keys, self._fetch, self._time = enforcer, keys, fetch, time

    def wait(self) -> float:
        """Seconds until the client owes nothing, and its connection may be read again."""
        return max(self._enforcer.spend(key, 0.0) for key in self._keys)

    def answered(self, size_bytes: int) -> float:
        """The answer has this size; the seconds for which the client is throttled."""
        if self._fetch is not None:
            self._enforcer.spend(self._fetch, size_bytes)
        longest = 0.0
        for key in self._keys:
            if seconds := self._enforcer.spend(key, 0.0):
                self._enforcer.metrics.throttled(key, seconds)
                longest = max(longest, seconds)
        return longest

    def call(self, handle: Callable[[Request], Awaitable[Response]], request: Request) -> Awaitable[Response]:
        """`handle(request)`, with its time on the event loop counted."""
        if self._time is None:
            return handle(request)
        began = self._enforcer.clock.monotonic()
        try:
            return handle(request)
        finally:
            self._took(began)

    async def run(self, work: Awaitable[Response]) -> Response:
        """`await work`, with its time on the event loop counted."""
        return await (work if self._time is None else _Timed(work, self._enforcer.clock, self._took))

    def _took(self, began: float) -> None:
        assert self._time is not None
        self._enforcer.spend(self._time, (self._enforcer.clock.monotonic() - began) * _PERCENT)


class _Timed(Awaitable[Response]):
    """Counts the time of each step of a coroutine, but not the time in which it waits."""

    def __init__(self, work: Awaitable[Response], clock: Clock, took: Callable[[float], None]) -> None:
        self._work, self._clock, self._took = work, clock, took

    def __await__(self) -> Generator[Any, Any, Response]:
        steps = self._work.__await__()
        while True:
            began = self._clock.monotonic()
            try:
                waits_for = next(steps)
            except StopIteration as end:
                answer: Response = end.value
                return answer
            finally:
                self._took(began)
            yield waits_for


def _name_bytes(key: BucketKey) -> int:
    """Return the memory of the names that a client chose."""
    return text_bytes(key.user, key.client_id)


class QuotaEnforcer:
    """Quota enforcer for one event loop. `on_image` after each change of the image; `activate` is called when the
    quotas are other ones: with this object, and with None when no client has one.
    """

    def __init__(self, clock: Clock, metrics: QuotaMetrics, activate: Callable[[QuotaEnforcer | None], None]) -> None:
        self.clock, self.metrics, self._activate = clock, metrics, activate
        self._quotas: object = None
        self.table = QuotaTable({})
        self._limits: ClientMemory[tuple[str | None, str], ClientLimits] = ClientMemory(
            _CLIENTS_BYTES, lambda client, _: text_bytes(*client)
        )
        self._buckets: ClientMemory[BucketKey, Bucket] = ClientMemory(_BUCKETS_BYTES, lambda key, _: _name_bytes(key))
        self._generation = clock.wall_ms()
        """Later runs of an agent begin with higher ones."""
        metrics.watch(self.buckets)

    def on_image(self, image: MetadataImage) -> None:
        """Take over the image's quotas. Debts stay; clients without a limit owe nothing."""
        if image.quotas is self._quotas:
            return
        self._quotas, self.table = image.quotas, QuotaTable(image.quotas)
        self._limits.clear()
        kinds = self.table.kinds
        for key in list(self._buckets):
            if key.kind not in kinds | {CONNECTION}:
                self._buckets.pop(key)
        self._activate(self if kinds else None)

    def arrived(self, request: Request, size_bytes: int) -> RequestUse | None:
        """A request was read. None: no limit applies to it. Agents among each other have none."""
        if request.connection.is_link or request.api_key in _UNLIMITED or request.api_key not in APIS:
            return None
        limits = self._limits_of(request)
        if not limits:
            return None
        found = []
        fetch = None
        if (time := limits.get(REQUEST)) is not None:
            found.append(time)
        if request.api_key == _PRODUCE_KEY and (produce := limits.get(PRODUCE)) is not None:
            self.spend(produce, size_bytes)
            found.append(produce)
        elif request.api_key in _FETCH_KEYS and (fetch := limits.get(FETCH)) is not None:
            found.append(fetch)
        return RequestUse(self, found, fetch, time) if found else None

    def mutation_key(self, request: Request) -> BucketKey | None:
        """Return the key of changes of partitions by this client; None: it has no limit."""
        return self._limits_of(request).get(MUTATION) if MUTATION in self.table.kinds else None

    def spend(self, key: BucketKey, amount: float) -> float:
        """Use it; the seconds to wait until nothing is owed. Nothing is, once the quota was removed."""
        rate = self.table.rate_of(key)
        return 0.0 if rate is None else self.bucket(Limit(key, rate)).spend(amount, self.clock.monotonic())

    def may_connect(self, address: str) -> bool:
        """Return whether a client of this address may open one more connection now."""
        rate = self.table.connection_rate(address)
        if rate is None:
            return True
        bucket = self.bucket(Limit(BucketKey(CONNECTION, None, address), rate))
        now = self.clock.monotonic()
        if bucket.level(now) < 1:
            return False
        bucket.spend(1, now)
        return True

    def buckets(self) -> Iterator[tuple[BucketKey, Bucket]]:
        """All that are in use."""
        return iter(self._buckets.items())

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of clients."""
        return self._limits.in_use_bytes + self._buckets.in_use_bytes

    def bucket(self, limit: Limit) -> Bucket:
        """The limit's bucket, with the limit's rate."""
        now = self.clock.monotonic()
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX or not self._buckets.has_room(limit.key):
                self.drop_full_buckets()
            if len(self._buckets) >= BUCKETS_MAX or not self._buckets.has_room(limit.key):
                limit = limit._replace(key=BucketKey(limit.key.kind, None, None))
            bucket = self._buckets.get(limit.key) or self._new_bucket(limit, now)
        if bucket.rate != limit.rate:
            bucket.change_rate(limit.rate, now)
        return bucket

    def drop_full_buckets(self) -> None:
        """Forget the clients that use nothing: a new bucket would be the same."""
        now = self.clock.monotonic()
        for key, bucket in self._buckets.items():
            if bucket.is_full(now):
                self._buckets.pop(key)

    def _new_bucket(self, limit: Limit, now: float) -> Bucket:
        kind = SharedBucket if limit.key.kind in SHARED else Bucket
        burst_seconds = MUTATION_BURST_SECONDS if limit.key.kind == MUTATION else BURST_SECONDS
        bucket = kind(limit.rate, now, burst_seconds)
        self._generation += 1
        bucket.generation = self._generation
        self._buckets.put(limit.key, bucket)
        return bucket

    def _limits_of(self, request: Request) -> ClientLimits:
        client = request.connection.principal, request.client_id or ""
        limits = self._limits.get(client)
        if limits is None:
            user = (client[0] or ANONYMOUS).partition(":")[2]
            found = {kind: self.table.limit(kind, user, client[1]) for kind in self.table.kinds}
            limits = {kind: limit.key for kind, limit in found.items() if limit is not None}
            self._limits.put(client, limits)
        return limits


MESSAGE = "The throttling quota has been exceeded."
"""Kafka's words."""
_FIRST_STRICT = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}


class MutationQuota:
    """Quota of one request without a limit."""

    def admits(self, partitions: int) -> bool:
        """Return whether so many partitions may be created or deleted now; they count then."""
        return True

    def throttle(self, response: Response) -> Response:
        """The response, with the time for which its client is throttled."""
        return response


class LimitedMutations(MutationQuota):
    """Quota of one request with a limit."""

    def __init__(self, enforcer: QuotaEnforcer, key: BucketKey, *, is_strict: bool) -> None:
        self._enforcer, self._key, self._is_strict = enforcer, key, is_strict

    def admits(self, partitions: int) -> bool:
        if self._is_strict and self._enforcer.spend(self._key, 0.0):
            return False
        self._enforcer.spend(self._key, partitions)
        return True

    def throttle(self, response: Response) -> Response:
        response.throttle_seconds = self._enforcer.spend(self._key, 0.0)
        if response.throttle_seconds:
            self._enforcer.metrics.throttled(self._key, response.throttle_seconds)
        return response


MutationQuotas = Callable[[Request], MutationQuota]
_NO_LIMIT = MutationQuota()


def unlimited(request: Request) -> MutationQuota:
    """Return unlimited quotas, for handlers without quotas."""
    return _NO_LIMIT


def mutation_quotas(enforcer: QuotaEnforcer) -> MutationQuotas:
    """Return the quotas of changes by the quotas of the newest image."""

    def of(request: Request) -> MutationQuota:
        key = enforcer.mutation_key(request)
        if key is None:
            return _NO_LIMIT
        return LimitedMutations(enforcer, key, is_strict=request.api_version >= _FIRST_STRICT[ApiKey(request.api_key)])

    return of
