"""One page of metrics for several agents: sums, and states by node."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.cli.several_agents import summed


def _page(requests: dict[str, int], state: int, seconds: list[float]) -> str:
    registry = CollectorRegistry()
    counter = Counter("x_requests", "Requests", ["api"], registry=registry)
    for api, count in requests.items():
        counter.labels(api).inc(count)
    Gauge("x_state", "State", registry=registry).set(state)
    histogram = Histogram("x_seconds", "Time", buckets=[0.1, 1], registry=registry)
    for value in seconds:
        histogram.observe(value)
    return generate_latest(registry).decode()


def _samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_counters_and_histograms_are_sums_and_gauges_have_their_node() -> None:
    page = summed({"1": _page({"Produce": 3}, 3, [0.05, 0.5]), "5": _page({"Produce": 4, "Fetch": 1}, 6, [5.0])})
    samples = _samples(page)
    assert samples["x_requests_total", (("api", "Produce"),)] == 7
    assert samples["x_requests_total", (("api", "Fetch"),)] == 1
    assert [samples["x_seconds_bucket", (("le", le),)] for le in ("0.1", "1.0", "+Inf")] == [1, 2, 3]
    assert samples["x_seconds_count", ()] == 3
    assert samples["x_seconds_sum", ()] == 5.55
    assert samples["x_state", (("node_id", "1"),)] == 3
    assert samples["x_state", (("node_id", "5"),)] == 6
    assert b"# TYPE x_requests_total counter" in page


def test_the_page_of_one_agent_keeps_every_sample() -> None:
    alone = _page({"Produce": 3}, 3, [0.05])
    counted = {key: value for key, value in _samples(alone.encode()).items() if key[0] != "x_state"}
    assert {key: value for key, value in _samples(summed({"1": alone})).items() if key[0] != "x_state"} == counted
