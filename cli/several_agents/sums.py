"""One page of metrics for several agents.

Place: pure; pages.py asks the agents.
Invariant: counters and histograms are sums, so that rates and quantiles are those of all agents. A gauge is a state of
one agent (a broker state, bytes in use): it keeps its value and gets the label `node_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

NODE = "node_id"
_SUMMED = ("counter", "histogram", "summary")
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and sorted labels of a sample."""


class _Page(Collector):
    """Families that are complete already."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def summed(pages: Mapping[str, str]) -> bytes:
    """The text of one page from the pages of agents, by node id."""
    families: dict[str, Metric] = {}
    totals: dict[str, dict[_Series, float]] = {}
    for node_id, page in pages.items():
        for family in text_string_to_metric_families(page):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            values = totals.setdefault(family.name, {})
            for sample in family.samples:
                own = {} if family.type in _SUMMED else {NODE: node_id}
                series = (sample.name, tuple(sorted((sample.labels | own).items())))
                values[series] = values.get(series, 0.0) + sample.value
    for name, values in totals.items():
        for (sample_name, labels), value in values.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(families))
    return generate_latest(registry)
