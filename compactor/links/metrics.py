"""Metrics of links, for /metrics. They are those of the process that copies.

Place: used by copying.py and discovery.py.
Invariant: a link is shared by jobs of several processes: gauges are sums over the shares of this process, and go when
its last share ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.links.partition_copy import PartitionCopy

Share = tuple[str, str]
"""A link, and the key of one of its jobs."""


class LinkMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Gauge(
            "headrace_link_lag_records",
            "Offsets that the source of a link has and its copies lack, in the partitions that this process copies",
            ["link"],
            registry=registry,
        )
        self._behind = Gauge(
            "headrace_link_behind_seconds",
            "Time since the copy that is furthest behind last had all that its source had, in this process",
            ["link"],
            registry=registry,
        )
        self._problems = Gauge(
            "headrace_link_problem_partitions",
            "Partitions that are not copied for a reason that `headrace link show` names, in this process",
            ["link"],
            registry=registry,
        )
        self._bytes = Counter(
            "headrace_link_copied_bytes", "Bytes of batches that links appended", ["link"], registry=registry
        )
        self._lost = Counter(
            "headrace_link_lost_offsets",
            "Offsets that a source no longer had when its link came to them",
            ["link"],
            registry=registry,
        )
        self.late = Counter(
            "headrace_link_late_records",
            "Offsets that came to the source of a topic after its promotion, while it was watched: they are in no copy",
            ["link"],
            registry=registry,
        )
        self.source_failures = Counter(
            "headrace_link_source_failures",
            "Requests to the source of a link that failed",
            ["link"],
            registry=registry,
        )
        self._shares: dict[Share, tuple[int, float, int]] = {}

    def show(self, share: Share, copies: Iterable[PartitionCopy], now: float) -> None:
        """Show where the partitions of a share are."""
        lag, behind, problems = 0, 0.0, 0
        for copy in copies:
            lag += max(copy.bounds.end - copy.stored_end, 0)
            behind = max(behind, now - copy.current_at)
            problems += bool(copy.problem)
        self._shares[share] = lag, behind, problems
        self._sum_up(share[0])

    def end(self, share: Share) -> None:
        """Forget a share that this process does not copy any more."""
        self._shares.pop(share, None)
        self._sum_up(share[0])

    def copied(self, link: str, size_bytes: int, lost: int) -> None:
        """Count what was appended."""
        self._bytes.labels(link).inc(size_bytes)
        self._lost.labels(link).inc(lost)

    def _sum_up(self, link: str) -> None:
        shares = [values for (name, _), values in self._shares.items() if name == link]
        gauges = self._lag, self._behind, self._problems
        if not shares:
            for gauge in gauges:
                if (link,) in gauge._metrics:
                    gauge.remove(link)
            return
        lags, behinds, problems = zip(*shares, strict=True)
        for gauge, value in zip(gauges, (sum(lags), max(behinds), sum(problems)), strict=True):
            gauge.labels(link).set(value)
