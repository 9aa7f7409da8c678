"""`headrace top`: agents, rates, lag, the partitions that are furthest behind, jobs; again every few seconds.

Place: a Kafka client, as the other tools; it takes the console's samples (cli/console/sampler.py) and draws them in a
terminal (screen.py). With metastore.url it also shows jobs and what an operator should change.
Invariant: it reads only. What does not answer is a line on the screen, not the end of it; Ctrl-C ends it with 0. With
--once it prints two samples' difference and ends, for scripts and pipes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from rich.live import Live

from headrace.cli.client.transport import client_config
from headrace.cli.console.agent_metrics import AgentPages
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.cluster_reads import read_cluster
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.sampler import Sampler
from headrace.cli.options import add_settings, settings_from
from headrace.cli.plain_console import PlainConsole
from headrace.cli.top.screen import Screen, drawn
from headrace.config.errors import ConfigError
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import HeadraceError

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
