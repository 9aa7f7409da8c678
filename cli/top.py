"""`headrace top`: agents, rates, lag, the partitions that are furthest behind, jobs; again every few seconds.

Place: a Kafka client, as the other tools; it takes the console's samples (cli/console/sampler.py) and draws them in
a terminal. With metastore.url it also shows jobs and what an operator should change.
Invariant of the screen: each table has a bounded number of lines, so that the screen fits a terminal of ordinary
height; it says how many it left out.
Invariant: it reads only. What does not answer is a line on the screen, not the end of it; Ctrl-C ends it with 0.
With --once it prints two samples' difference and ends, for scripts and pipes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.console.agent_metrics import AgentPages, ClientUse, Pair, heaviest_first, shown_pair
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.cluster_reads import ClusterSummary, read_cluster
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.sampler import Sampler
from headrace.cli.console.samples import Point, Sample, TopicRate
from headrace.cli.doctor.findings import Finding, Level
from headrace.cli.options import add_settings, settings_from
from headrace.cli.plain_console import PlainConsole, cell
from headrace.config.errors import ConfigError
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from headrace.protocol.client.transport import client_config
from headrace.storage.client_text import one_line
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import HeadraceError

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


DESCRIPTION = """\
Show a running cluster on one screen that refreshes: agents, records and bytes per second, the clients
that send and get most, consumer lag, the partitions that are furthest behind, background jobs. Ctrl-C ends it.

  headrace top -b 127.0.0.1:9092
  headrace top -b kafka:9092 --agent-http http://agents:9644 --metastore-url postgresql://headrace@db/headrace
  headrace top -b 127.0.0.1:9092 --once
"""
SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--bootstrap-server", "-b", metavar="SERVERS", help="host:port pairs, comma-separated")
    parser.add_argument("--command-config", type=Path, metavar="FILE", help="properties file of the admin client")
    parser.add_argument(
        "--agent-http",
        default="",
        metavar="URLS",
        help="URLs of the agents' HTTP listeners: for bytes, commits, clients",
    )
    parser.add_argument("--agent-http-token", type=Path, metavar="FILE", help="file with the bearer token for them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"between two samples ({SECONDS:g})")
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    add_settings(parser, ("metastore.url",), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 after Ctrl-C, or after one screen; 1 if --once found no cluster."""
    if args.seconds <= 0:
        raise ConfigError("--seconds: not above 0")
    clock = SystemClock()
    link = ClusterLink(client_config(args.bootstrap_server, args.command_config), clock)
    urls = tuple(url.strip().rstrip("/") for url in args.agent_http.split(",") if url.strip())
    token = args.agent_http_token.read_text(encoding="utf-8").strip() if args.agent_http_token else ""
    settings = settings_from(args)
    metastore = MetastoreLink(settings, clock) if settings.metastore_url else None
    look = _Look(link, Sampler(link, AgentPages(urls, token), clock), metastore)
    try:
        return _once(look, clock, args.seconds) if args.once else _refreshed(look, clock, args.seconds)
    finally:
        if metastore is not None:
            metastore.close()


class _Look:
    """Reads what a screen shows."""

    def __init__(self, link: ClusterLink, sampler: Sampler, metastore: MetastoreLink | None) -> None:
        self._link, self._sampler, self._metastore = link, sampler, metastore

    def __call__(self) -> Screen:
        screen = Screen(servers=self._link.servers)
        self._sampler.take()
        screen.problems += self._sampler.problems
        screen.sample = self._sampler.samples.last
        points = self._sampler.samples.points
        screen.point = points[-1] if points else None
        screen.rate_of = self._sampler.samples.rate
        screen.clients = self._sampler.samples.clients
        try:
            with self._link.opened() as cluster:
                screen.cluster = read_cluster(cluster)
        except HeadraceError as error:
            screen.problems.append(str(error))
        if self._metastore is not None:
            try:
                screen.jobs = self._metastore.background_work().counts
                screen.findings = self._metastore.findings()
            except HeadraceError as error:
                screen.problems.append(str(error))
        return screen


def _once(look: _Look, clock: Clock, seconds: float) -> int:
    look()
    _wait(clock, seconds)
    screen = look()
    PlainConsole().print(drawn(screen))
    return 0 if screen.cluster is not None else 1


def _refreshed(look: _Look, clock: Clock, seconds: float) -> int:
    with contextlib.suppress(KeyboardInterrupt), Live(console=PlainConsole(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn(look()), refresh=True)
            _wait(clock, seconds)
    return 0


def _wait(clock: Clock, seconds: float) -> None:
    asyncio.run(clock.sleep(seconds))
