"""What the pages are made from, without a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.cli.console.agent_metrics import (
    OTHERS,
    AgentCounters,
    ClientUse,
    client_rates,
    client_uses,
    heaviest_first,
    parse_counters,
)
from headrace.cli.console.cluster_reads import AgentRow, ClusterSummary, Quorum
from headrace.cli.console.pages.overview import HEIGHT, WIDTH, alarms, draw
from headrace.cli.console.pages.records import show_bytes, visible
from headrace.cli.console.parts import DASH, PageOfRows, grouped, in_bytes, lasted, time_ms, utc, whole_number
from headrace.cli.console.samples import POINTS_MAX, Sample, Samples, quantile
from headrace.cli.doctor.findings import Area
from headrace.storage.errors import InvalidError


class Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary(max_size=300), st.integers(1, 200))
def test_any_bytes_are_shown_within_the_limit(data: bytes, bytes_max: int) -> None:
    shown = show_bytes(data, bytes_max)
    assert shown.size == len(data)
    assert shown.cut == (len(data) > bytes_max)
    assert all(character in "\n\t" or character.isprintable() or character.isspace() for character in shown.text)
    assert len(shown.text) <= 10 * bytes_max + 90


@given(JSON.filter(lambda value: isinstance(value, list | dict)))
def test_indented_json_is_the_same_json(value: Any) -> None:
    sent = json.dumps(value).encode()
    shown = show_bytes(sent, 1_000_000)
    assert shown.kind == "json"
    if "\\u{" not in shown.text:
        assert json.loads(shown.text) == value


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (None, "null"),
        (b"", "empty"),
        (b"plain", "text"),
        (b"[1, 2]", "json"),
        (b'{"a": 1, "a": 2}', "text"),
        (b'{"price": 1.10}', "text"),
        (b'{"price": 1.1}', "json"),
        (b"{broken", "text"),
        (b"[" * 100_000, "text"),
        (b"[" + b"9" * 5_000 + b"]", "text"),
        (b"[NaN]", "text"),
        (b"\xff", "hex"),
        (b"a\x00b", "hex"),
        ("ä".encode()[:1], "hex"),
    ],
)
def test_kinds(data: bytes | None, kind: str) -> None:
    assert show_bytes(data, 200_000).kind == kind


def test_a_character_is_not_cut_in_two() -> None:
    shown = show_bytes("aä€😀".encode() * 10, 9)
    assert (shown.kind, shown.text, shown.cut) == ("text", "aä€", True)
    assert visible("a\u202eb\u200bc\x1b") == "a\\u{202e}b\\u{200b}c\\u{001b}"


def test_rates_are_between_two_samples() -> None:
    samples = Samples()
    samples.add(_sample(0, 10, 100))
    assert samples.rate("t") is None
    samples.add(_sample(5, 35, 600, commits={0.1: 0, 0.2: 90, math.inf: 100}))
    (point,) = samples.points
    assert (point.records, point.produced_bytes, point.lag) == (5.0, 100.0, 32)
    assert point.commit_p99_ms == 200, "beyond the last edge that is known"
    rate = samples.rate("t")
    assert rate is not None
    assert (rate.records, rate.received_bytes, rate.sent_bytes) == (5.0, 100.0, 0.0)
    samples.add(_sample(10, 35, 50))
    assert samples.points[-1].produced_bytes == 10, "the agent started again"
    assert samples.points[-1].commit_p99_ms is None


def test_points_are_bounded() -> None:
    samples = Samples()
    for number in range(POINTS_MAX + 10):
        samples.add(_sample(number * 5, number, 0))
    assert len(samples.points) == POINTS_MAX
    assert samples.points[-1].records == pytest.approx(0.2)
    assert len(samples.since(samples.points[-3].at_ms)) == 3


def _sample(at: float, end: int, produced: float, commits: dict[float, float] | None = None) -> Sample:
    counters = AgentCounters(produced, 0.0, commits or {}, {"t": produced}, {})
    ends = {("t", 0): end, ("gone", 0): 1}
    return Sample(int(at * 1000), at, ends, {"g": {("t", 0): 3, ("lost", 1): 9}}, {"agent": counters})


def test_a_quantile_is_inside_its_bucket() -> None:
    assert quantile({0.1: 50, 0.2: 100, math.inf: 100}, 0.5) == pytest.approx(0.1)
    assert quantile({0.1: 50, 0.2: 100, math.inf: 100}, 0.75) == pytest.approx(0.15)
    assert quantile({}, 0.5) is None
    assert quantile({0.1: 0, math.inf: 0}, 0.5) is None


def test_counters_are_read_from_a_page() -> None:
    page = """# HELP headrace_produce_bytes_total x
headrace_produce_bytes_total 1.5e+06
headrace_produce_commit_seconds_bucket{le="0.01"} 4
headrace_produce_commit_seconds_bucket{le="+Inf"} 5
headrace_topic_received_bytes_total{topic="a.b-c"} 12
headrace_other 9
"""
    found = parse_counters(page)
    assert (found.produced, found.fetched) == (1_500_000, 0)
    assert found.commits == {0.01: 4, math.inf: 5}
    assert found.received_by_topic == {"a.b-c": 12}


@given(st.dictionaries(st.tuples(st.text(min_size=1), st.text()), st.integers(0, 2**50), max_size=5))
def test_counters_by_client_are_read_with_any_names(sizes: dict[tuple[str, str], int]) -> None:
    family = CounterMetricFamily("headrace_client_received_bytes", "x", labels=["user", "client_id"])
    for pair, size in sizes.items():
        family.add_metric(pair, size)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families([family]))
    page = generate_latest(registry).decode()
    assert {pair: use.received_bytes for pair, use in client_uses(page).items()} == sizes


def test_rates_by_client_are_sums_over_agents_and_begin_at_zero() -> None:
    before = {("a", "x"): ClientUse(10, 1_000), OTHERS: ClientUse(5, 50)}
    after = {("a", "x"): ClientUse(30, 3_000), ("b", "y"): ClientUse(4, 400), OTHERS: ClientUse(1, 20)}
    rates = client_rates([(before, after), ({("a", "x"): ClientUse(1, 1)}, {("a", "x"): ClientUse(3, 101)})], 2.0)
    assert rates == {("a", "x"): ClientUse(11, 1_050), ("b", "y"): ClientUse(2, 200), OTHERS: ClientUse(0.5, 10)}
    assert [pair for pair, _ in heaviest_first(rates)] == [("a", "x"), ("b", "y"), OTHERS]


def test_a_chart_stays_in_its_box_and_has_gaps() -> None:
    points: list[tuple[int, float | None]] = [(0, 3.0), (5_000, 7.0), (10_000, None), (60_000, 4.0), (99_000, 1.0)]
    chart = draw("t", "records", points, 0, 60_000)
    assert (chart.top, chart.now, chart.most) == (10.0, 4.0, 7.0)
    assert chart.line == "M0.0 84.0 L50.0 36.0 M600.0 72.0"
    numbers = [float(part.lstrip("ML")) for part in chart.area.replace("Z", "").split()]
    assert all(0 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert draw("t", "bytes", [(0, 1500.0)], 0, 1, step=1024.0).top == 2048
    assert draw("t", "bytes", [], 0, 1).now is None


@given(st.floats(0, 1e15))
def test_the_upper_edge_is_never_below_the_values(value: float) -> None:
    for step in (10.0, 1024.0):
        top = draw("t", "x", [(0, value)], 0, 1, step=step).top
        assert value <= top * 1.000001
        assert top <= max(1.0, value * 10.000001)


def test_numbers_and_times_are_words() -> None:
    assert [grouped(12345), grouped(1.25), grouped(None)] == ["12,345", "1.2", DASH]
    assert [in_bytes(0), in_bytes(1536), in_bytes(250 * 1024**2)] == ["0 B", "1.5 KiB", "250 MiB"]
    assert [utc(0), utc(-1), utc(2**62)] == ["1970-01-01 00:00:00.000 UTC", DASH, f"{2**62} ms"]
    assert [lasted(350), lasted(12_000), lasted(300_000), lasted(None)] == ["350 ms", "12 s", "5 min", DASH]


def test_values_of_a_url() -> None:
    assert whole_number(" ", "f") is None
    assert whole_number("-5", "f", -9, 9) == -5
    for text in ("x", "10", "9" * 5000, "1.5"):
        with pytest.raises(InvalidError, match="f: not"):
            whole_number(text, "f", 0, 9)
    assert time_ms("2026-01-31T12:00", "f") == time_ms("2026-01-31T13:00+01:00", "f") == 1769860800000
    assert time_ms("1769860800000", "f") == 1769860800000
    assert (PageOfRows.of("", 10, 0).rows, PageOfRows.of("9", 10, 25).number) == (slice(0, 10), 3)


def test_alarms_are_what_is_not_ok_and_the_worst_comes_first() -> None:
    agents = [AgentRow(1, "a", 1, "z", "live"), AgentRow(2, "b", 1, "z", "fenced")]
    view = ClusterSummary("id", agents, Quorum(-1, 3, 9), [], 1, 1, ["t:0"])
    area = Area("postgres")
    found = alarms(view, [area.ok("connect", "fine"), area.warn("bloat", "much", "VACUUM")], ["no answer"])
    assert [(f.check, f.level.value) for f in found] == [
        ("controller", "bad"),
        ("partitions", "bad"),
        ("bloat", "warn"),
        ("agents", "warn"),
        ("samples", "warn"),
    ]
    assert alarms(ClusterSummary("id", [agents[0]] * 2, None, [], 0, 0, []), [], []) == []
