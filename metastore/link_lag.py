"""Sums up how far the copies of links are behind their sources. Pure.

Place: under the answers about links (agent/topics/link_report.py) and the metrics of the active controller
(agent/cluster/controller/link_steps.py).
Invariant: a lag in time is measured by the database's clock, from the moment at which the copy last had all that its
source had: it grows while no worker looks at the source, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.metastore.api.links import LinkedProgress

FRESH_MS = 15_000
"""A copy without a lag in records has none in time, if it had everything less than this ago."""
NEVER = -1
"""The lag in time of a copy that never had all that its source had."""


@dataclass(slots=True)
class LinkLag:
    """The sums of some linked partitions."""

    partitions: int = 0
    records: int = 0
    """Offsets that the copies have, from their log starts on."""
    source_records: int = 0
    lag: int = 0
    """Offsets that they lack."""
    lag_bytes: int = 0
    """What is left to copy, by the mean size of a copied record."""
    lag_ms: int = 0
    """The longest one; NEVER if one never had everything."""
    copied_bytes: int = 0
    lost: int = 0
    ready: int = 0
    problems: int = 0


def lag_ms(progress: LinkedProgress, now_ms: int) -> int:
    """Return how long ago the copy last had all that the source had; NEVER if it has not."""
    if not progress.current_ms:
        return NEVER
    age_ms = max(now_ms - progress.current_ms, 0)
    return 0 if not progress.lag and age_ms < FRESH_MS else age_ms


def summed(partitions: Iterable[LinkedProgress], now_ms: int) -> LinkLag:
    """The sums of these partitions; `now_ms` on the database's clock."""
    total = LinkLag()
    for each in partitions:
        records = each.high_watermark - each.log_start_offset
        total.partitions += 1
        total.records += records
        total.source_records += max(each.source_end - max(each.source_start, 0), 0)
        total.lag += each.lag
        total.lag_bytes += each.lag * each.copied_bytes // max(records, 1)
        total.copied_bytes += each.copied_bytes
        total.lost += each.lost
        total.ready += each.is_ready
        total.problems += bool(each.problem)
        own = lag_ms(each, now_ms)
        total.lag_ms = NEVER if NEVER in (own, total.lag_ms) else max(own, total.lag_ms)
    return total
