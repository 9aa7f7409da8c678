"""Counters with labels that are there from the start.

Place: under the metrics of every part. prometheus_client shows a label's value only after its first increment, and
PromQL's increase() does not see the step from nothing to one: an alert on the first error would never fire.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter


def from_zero(counter: Counter, values: Iterable[str]) -> Counter:
    """The counter of one label, with a 0 for each of its values."""
    for value in values:
        counter.labels(value)
    return counter
