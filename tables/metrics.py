"""Metrics of the tables that this process keeps.

Place: used by follower.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.tables.looking import Condition, TableLook
from headrace.tables.worker import TableRound


class TableMetrics:
    """One set per process with the role tables. `monotonic`: seconds."""

    def __init__(self, registry: CollectorRegistry | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._behind_since: dict[tuple[str, int], float] = {}
        self._lags: dict[str, dict[int, int]] = {}
        """What was shown last."""
        self._lag = Gauge(
            "headrace_table_lag",
            "Offsets of committed records that the Iceberg table does not have yet",
            ["table", "partition"],
            registry=registry,
        )
        self._lag_seconds = Gauge(
            "headrace_table_lag_seconds",
            "Seconds for which the partition has been ahead of the Iceberg table",
            ["table", "partition"],
            registry=registry,
        )
        self._rows = Counter(
            "headrace_table_appended_records_total", "Records appended to the table", ["table"], registry=registry
        )
        self._commits = Counter(
            "headrace_table_commits_total",
            "Commits to the table by outcome: committed, conflict (another one was first), unknown (no answer)",
            ["table", "outcome"],
            registry=registry,
        )
        self._missing = Counter(
            "headrace_table_missing_offsets_total",
            "Offsets that were removed from the topic before the table had them",
            ["table"],
            registry=registry,
        )
        self._dead_letters = Counter(
            "headrace_table_dead_letters_total",
            "Records that do not fit the table's schema, appended to its dead-letter table",
            ["table"],
            registry=registry,
        )
        self._following = Gauge(
            "headrace_table_following",
            "1 if the table follows its topic; 0 if it is paused, stopped or blocked, or its newest round failed",
            ["table"],
            registry=registry,
        )

        self._refused = Gauge(
            "headrace_table_declarations_refused",
            "Topics with table.enable=true that get no table; the log says why",
            registry=registry,
        )

    def show_refused(self, topics: int) -> None:
        """Show how many topics have configs that make no table."""
        self._refused.set(topics)

    def done(self, table: str, done: TableRound) -> None:
        """Show one round."""
        if done.condition is Condition.DETACHED:
            self.forget(table)
            return
        self._following.labels(table).set(done.condition is Condition.FOLLOWING)
        if done.outcome is not None:
            self._commits.labels(table, done.outcome.value).inc()
        self._rows.labels(table).inc(done.rows)
        self._missing.labels(table).inc(done.missing)
        self._dead_letters.labels(table).inc(done.dead_letters)
        if done.condition is Condition.FOLLOWING:
            self._show_lag(table, done.lag)

    def looked(self, table: str, look: TableLook) -> None:
        """Show what a round found, before it does anything."""
        if look.step is not None and look.condition is not Condition.STOPPED:
            self._show_lag(table, look.lag)

    def failed(self, table: str) -> None:
        """Show a round that ended with an error: the partitions that were behind still are."""
        self._following.labels(table).set(0)
        self._show_lag(table, self._lags.get(table, {}))

    def _show_lag(self, table: str, lag: Mapping[int, int]) -> None:
        now = self._monotonic()
        self._lags[table] = dict(lag)
        known = {partition for name, partition in self._behind_since if name == table}
        for partition in known | lag.keys():
            behind = lag.get(partition, 0)
            since = self._behind_since.setdefault((table, partition), now)
            if not behind:
                self._behind_since[table, partition] = since = now
            self._lag.labels(table, partition).set(behind)
            self._lag_seconds.labels(table, partition).set(now - since)

    def forget(self, table: str) -> None:
        """The table was dropped, or has no topic any more."""
        for key in [key for key in self._behind_since if key[0] == table]:
            del self._behind_since[key]
            for gauge in (self._lag, self._lag_seconds):
                gauge.remove(table, str(key[1]))
        self._lags.pop(table, None)
        with contextlib.suppress(KeyError):  # not shown, or not any more
            self._following.remove(table)
