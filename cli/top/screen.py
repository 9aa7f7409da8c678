"""Draws the screen of `headrace top` from what was read. Pure.

Place: under command.py.
Invariant: each table has a bounded number of lines, so that the screen fits a terminal of ordinary height; it says how
many it left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.console.client_counters import ClientUse, Pair, heaviest_first, shown_pair
from headrace.cli.console.cluster_reads import ClusterSummary
from headrace.cli.console.samples import Point, Sample, TopicRate
from headrace.cli.doctor.findings import Finding, Level
from headrace.cli.plain_console import cell
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from headrace.storage.client_text import one_line

AGENTS_MAX, TOPICS_MAX, CLIENTS_MAX, GROUPS_MAX, PARTITIONS_MAX, JOBS_MAX, LINES_MAX = 8, 6, 6, 6, 6, 6, 6
NAME_CHARACTERS = 40
"""Most characters of a user or a client id: the columns with numbers stay on the screen."""
UNITS = ("", "K", "M", "G", "T")


@dataclass
class Screen:
    """What one screen shows. None: it was not read, or not yet."""

    servers: str = ""
    cluster: ClusterSummary | None = None
    sample: Sample | None = None
    point: Point | None = None
    rate_of: Callable[[str], TopicRate | None] = lambda topic: None
    clients: Mapping[Pair, ClientUse] = field(default_factory=dict)
    """Uses per second; empty without the agents' HTTP addresses."""
    jobs: Sequence[JobCount] = ()
    findings: Sequence[Finding] = ()
    problems: list[str] = field(default_factory=list)


def drawn(screen: Screen) -> RenderableType:
    """Return the whole screen."""
    parts: list[RenderableType] = [_head(screen)]
    if screen.cluster is not None:
        parts.append(_agents(screen.cluster))
    if screen.sample is not None:
        parts += [_topics(screen), *_clients(screen.clients), _groups(screen.sample), _behind(screen.sample)]
    if screen.jobs:
        parts.append(_jobs(screen.jobs))
    wrong = [finding for finding in screen.findings if finding.level is not Level.OK]
    lines = [*screen.problems, *(f"{f.level.value} {f.area} {f.check}: {f.found}" for f in wrong)]
    parts += [Text(one_line(line), style="yellow", overflow="ellipsis", no_wrap=True) for line in lines[:LINES_MAX]]
    return Group(*parts)


def amount(value: float | None) -> str:
    """Return it with three digits and a unit: 1.23M; a dash if it is unknown."""
    if value is None:
        return "-"
    for unit in UNITS:
        if abs(value) < 1000 or unit == UNITS[-1]:
            return f"{value:.3g}{unit}" if abs(value) < 1000 else f"{value:.0f}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def _head(screen: Screen) -> Text:
    point = screen.point
    if point is None:
        return cell(f"headrace top  {screen.servers}  waiting for two samples", "bold")
    p99 = "-" if point.commit_p99_ms is None else f"{point.commit_p99_ms:.0f} ms"
    return cell(
        f"headrace top  {screen.servers}  records/s {amount(point.records)}  in {amount(point.produced_bytes)}B/s"
        f"  out {amount(point.fetched_bytes)}B/s  commit p99 {p99}  lag {amount(float(point.lag))}",
        "bold",
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold cyan")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _left_out(table: Table, count: int, most: int) -> Table:
    if count > most:
        table.add_row(f"and {count - most} more")
    return table


def _agents(cluster: ClusterSummary) -> Table:
    table = _table("AGENTS", "zone", "state")
    leader = -1 if cluster.quorum is None else cluster.quorum.leader
    for agent in cluster.agents[:AGENTS_MAX]:
        role = "  active controller" if agent.node_id == leader else ""
        table.add_row(*map(cell, (f"{agent.node_id} {agent.host}:{agent.port}{role}", agent.zone or "-", agent.state)))
    return _left_out(table, len(cluster.agents), AGENTS_MAX)


def _topics(screen: Screen) -> Table:
    assert screen.sample is not None
    table = _table("TOPICS", "records/s", "in B/s", "out B/s")
    names = {topic for topic, _ in screen.sample.ends}
    rates = {name: rate for name in names if (rate := screen.rate_of(name)) is not None}
    busiest = sorted(rates, key=lambda name: (-rates[name].records, name))
    for name in busiest[:TOPICS_MAX]:
        rate = rates[name]
        table.add_row(cell(name), amount(rate.records), amount(rate.received_bytes), amount(rate.sent_bytes))
    return _left_out(table, len(names), TOPICS_MAX)


def _clients(clients: Mapping[Pair, ClientUse]) -> Iterator[Table]:
    """Yield the table if anything is known."""
    if not clients:
        return
    table = _table("CLIENTS", "client id", "requests/s", "in B/s", "out B/s")
    for pair, use in heaviest_first(clients)[:CLIENTS_MAX]:
        names = (cell(one_line(name)[:NAME_CHARACTERS]) for name in shown_pair(pair))
        table.add_row(*names, amount(use.requests), amount(use.received_bytes), amount(use.sent_bytes))
    yield _left_out(table, len(clients), CLIENTS_MAX)


def _groups(sample: Sample) -> Table:
    table = _table("GROUPS", "lag")
    lags = {group: sample.lag(group) for group in sample.committed}
    for group in sorted(lags, key=lambda group: (-lags[group], group))[:GROUPS_MAX]:
        table.add_row(cell(group), amount(float(lags[group])))
    return _left_out(table, len(lags), GROUPS_MAX)


def _behind(sample: Sample) -> Table:
    table = _table("FURTHEST BEHIND", "lag")
    pairs = sorted(_lags(sample), reverse=True)
    for lag, group, topic, partition in pairs[:PARTITIONS_MAX]:
        table.add_row(cell(f"{topic}-{partition} in {group}"), amount(float(lag)))
    return _left_out(table, len(pairs), PARTITIONS_MAX)


def _lags(sample: Sample) -> Iterator[tuple[int, str, str, int]]:
    """(lag, group, topic, partition) of each pair with a lag."""
    for group, offsets in sample.committed.items():
        for (topic, partition), offset in offsets.items():
            lag = sample.ends.get((topic, partition), offset) - offset
            if lag > 0:
                yield lag, group, topic, partition


def _jobs(counts: Sequence[JobCount]) -> Table:
    table = _table("JOBS", "waiting", "running", "given up", "overdue s")
    by_kind: dict[str, dict[JobState, int]] = {}
    overdue: dict[str, int] = {}
    for count in counts:
        by_kind.setdefault(count.kind, {})[count.state] = count.jobs
        overdue[count.kind] = max(overdue.get(count.kind, 0), count.overdue_ms)
    for kind in sorted(by_kind, key=lambda kind: (-overdue[kind], kind))[:JOBS_MAX]:
        numbers = (by_kind[kind].get(state, 0) for state in (JobState.WAITING, JobState.LEASED, JobState.GIVEN_UP))
        table.add_row(cell(kind), *map(str, numbers), f"{overdue[kind] / 1000:.0f}")
    return _left_out(table, len(by_kind), JOBS_MAX)
