"""What the groups of an agent count, for Prometheus.

Place: written by held_groups.py and offsets/group_offsets.py, read by the HTTP listener.
Invariant: labels have few values; topics are never labels, and groups only in a list of at most LATE_GROUPS_SHOWN. A
group is counted by the one agent that holds it, so sums over agents are right.
"""

from __future__ import annotations

import heapq
from collections import Counter as Tally
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

KindAndState = tuple[str, str]
LATE_GROUPS_SHOWN = 20
"""Those that are late for longest."""


class _GroupsByState(Collector):
    """Counted when metrics are read: states change often, and are read seldom."""

    def __init__(self, states: Callable[[], list[KindAndState]]) -> None:
        self._states = states

    def collect(self) -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily("headrace_groups", "Groups that this agent holds", labels=["kind", "state"])
        for labels, count in sorted(Tally(self._states()).items()):
            family.add_metric(labels, count)
        return [family]


class _LateGroups(Collector):
    """Groups that get no more of a topic that doubled until they commit (agent/groups/consumer/topics.py)."""

    def __init__(self, late: Callable[[], Mapping[str, float]]) -> None:
        self._late = late

    def collect(self) -> list[GaugeMetricFamily]:
        late = self._late()
        count = GaugeMetricFamily(
            "headrace_groups_late",
            "Groups that have not committed up to the boundary of a split partition for group.late.parent.ms",
            value=len(late),
        )
        each = GaugeMetricFamily(
            "headrace_group_late_seconds", "How long such a group has waited, of the longest ones", labels=["group"]
        )
        for group_id in heapq.nlargest(LATE_GROUPS_SHOWN, late, key=lambda group_id: late[group_id]):
            each.add_metric([group_id], late[group_id])
        return [count, each]


class GroupMetrics:
    """One set per agent; `registry` is what its HTTP listener shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.state_changes = Counter(
            "headrace_group_state_changes_total",
            "Groups that entered a state; PreparingRebalance: a rebalance began",
            ["kind", "state"],
            registry=registry,
        )
        loads = Counter(
            "headrace_group_loads_total",
            "Groups that this agent tried to take over; barred: the last holder had not released it",
            ["outcome"],
            registry=registry,
        )
        self.loaded, self.load_barred, self.load_failed = (loads.labels(o) for o in ("loaded", "barred", "failed"))
        self.streams_rebalances = Counter(
            "headrace_streams_group_rebalances_total",
            "New epochs of streams groups; Kafka's streams-group-rebalance-count",
            registry=registry,
        )
        self.let_go = Counter("headrace_group_let_go_total", "Groups that this agent released", registry=registry)
        self.saves_failed = Counter(
            "headrace_group_saves_failed_total", "Saves that the metastore refused or did not answer", registry=registry
        )
        commits = Counter(
            "headrace_offset_commits_total",
            "OffsetCommit requests that came to their group; refused: by the group; failed: by the metastore",
            ["outcome"],
            registry=registry,
        )
        self.committed, self.commit_refused, self.commit_failed = (
            commits.labels(outcome) for outcome in ("stored", "refused", "failed")
        )
        self.committed_partitions = Counter(
            "headrace_offset_commit_partitions_total", "Committed offsets that were stored", registry=registry
        )

    def watch(self, states: Callable[[], list[KindAndState]]) -> None:
        """Show how many groups there are; `states` is called on the HTTP listener's thread."""
        self._registry.register(_GroupsByState(states))

    def watch_late(self, late: Callable[[], Mapping[str, float]]) -> None:
        """Show which groups are late; `late`: group id -> seconds, called on the HTTP listener's thread."""
        self._registry.register(_LateGroups(late))
