"""How full this process's pools of connections to Postgres are, for /metrics.

Place: pool.py hands over each pool that it opens; one collector in the process's registry, as the times of calls.
Invariant: reads counters of the pools, calls nothing; a pool that is closed and forgotten is not shown.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.metastore.postgres.statement import Pool


class PoolMetrics(Collector):
    """Metrics of all pools of this process, summed by name."""

    def __init__(self) -> None:
        self._pools: weakref.WeakKeyDictionary[Pool, str] = weakref.WeakKeyDictionary()

    def watch(self, pool: Pool, name: str) -> None:
        """Show it from now on, until it is closed."""
        self._pools[pool] = name

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape, on the HTTP listener's thread."""
        limit = GaugeMetricFamily(
            "headrace_metastore_pool_max_connections", "Most connections that the pool may have", labels=["pool"]
        )
        busy = GaugeMetricFamily(
            "headrace_metastore_pool_busy_connections", "Connections that run a statement now", labels=["pool"]
        )
        waiting = GaugeMetricFamily(
            "headrace_metastore_pool_waiting", "Calls that wait for a connection now", labels=["pool"]
        )
        failed = CounterMetricFamily(
            "headrace_metastore_pool_failed_waits",
            "Calls that got no connection within metastore.statement.timeout.ms",
            labels=["pool"],
        )
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pool, name in list(self._pools.items()):
            if not pool.closed:
                sums[name].update(pool.get_stats())
        for name, stats in sums.items():
            limit.add_metric([name], stats["pool_max"])
            busy.add_metric([name], max(0, stats["pool_size"] - stats["pool_available"]))
            waiting.add_metric([name], stats["requests_waiting"])
            failed.add_metric([name], stats["requests_errors"])
        yield from (limit, busy, waiting, failed)


POOLS = PoolMetrics()
REGISTRY.register(POOLS)
