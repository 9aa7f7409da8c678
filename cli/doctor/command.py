"""`headrace doctor`: one line for each thing that a cluster depends on, with what to do about it.

Place: run by people before a cluster starts, and when something is wrong; on a machine that runs agents.
Invariant: it changes nothing, but for a few objects below doctor/ in the bucket, which it deletes. It ends also if
something does not answer. The exit status is 1 if anything is bad.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence

from rich.text import Text

from headrace.cli.doctor import bucket, cluster, host, postgres, tables
from headrace.cli.doctor.bucket_facts import BucketFacts, open_bucket_facts
from headrace.cli.doctor.deadline import in_time, on_own_loop, run_to_end
from headrace.cli.doctor.findings import Finding, Level, of_bucket
from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.plain_console import PlainConsole
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.postgres.address import url_with_password
from headrace.metastore.postgres.diagnosis.diagnosis import of_the_primary
from headrace.metastore.postgres.formatted import FormattedCluster, formatted_cluster
from headrace.storage.client_text import one_line
from headrace.storage.clock import Clock, SystemClock, within
from headrace.storage.errors import HeadraceError

DESCRIPTION = """\
Look at everything that a cluster depends on: Postgres, the bucket, this machine, the agents' addresses,
and with tables.catalog.name the tables of topics.
Each line is ok, unknown, warn or bad, and says what to do. Run it where agents or clients run, with the agents'
settings. The status is 1 if a line is bad.

  headrace doctor -c agent.properties
  headrace doctor --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace --json
"""
_STYLES = {Level.OK: "green", Level.UNKNOWN: "cyan", Level.WARN: "yellow", Level.BAD: "bold red"}
_WIDTH = max(len(level.value) for level in Level)
AREA_SECONDS = 90.0
NEEDED = ("connect", "ask", "answers", "encoding", "pooler", "schema", "locks", "commits")
"""Checks of Postgres without which nothing is read from it."""
UNREAD = ("open", "answers", "cluster", bucket.UNREACHED)
"""Checks of the bucket without which nothing is read from it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")
    add_settings(parser, ("metastore.url", "bucket", "tables.catalog.name", "tables.catalog.uri", *STORE), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one is bad."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    findings = run_to_end(lambda: examine(settings, SystemClock(), random.Random()))
    write(_as_json(findings)) if args.json else _print(findings)
    return 1 if any(finding.level is Level.BAD for finding in findings) else 0


async def examine(settings: Settings, clock: Clock, rng: random.Random) -> list[Finding]:
    """Every finding, area by area. The cluster is looked at only if Postgres is in order."""
    of_postgres, (settings, of_cluster) = await asyncio.gather(
        in_time(clock, AREA_SECONDS, postgres.AREA, "answers", postgres.examine(settings, clock), postgres.ASK_AGAIN),
        _cluster(settings, clock),
    )
    # after it: a busy machine would be slow to read Postgres' answers while a store's client is loaded
    of_bucket = await bucket.examine(settings, clock, rng, of_cluster)
    found = [*host.judge(host.facts()), *host.judge_settings(settings), *of_postgres, *of_bucket]
    if any(f.level in (Level.BAD, Level.UNKNOWN) and f.check in NEEDED for f in of_postgres):
        return found
    facts = None
    if not any(f.level is Level.BAD or (f.level is Level.UNKNOWN and f.check in UNREAD) for f in of_bucket):
        facts, failures = await _bucket_facts(settings, clock, rng)
        found += failures
    found += await cluster.examine(settings, facts, clock)
    return found if facts is None else [*found, *await tables.examine(settings)]


async def _bucket_facts(
    settings: Settings, clock: Clock, rng: random.Random
) -> tuple[BucketFacts | None, list[Finding]]:
    """Return what the bucket has of the cluster, or why that is not known."""
    try:
        reading = on_own_loop(lambda: open_bucket_facts(settings, clock, rng))
        return await within(clock, bucket.STEP_SECONDS, reading), []
    except TimeoutError:
        why = f"the bucket's objects of the cluster were not read in {bucket.STEP_SECONDS:g} s"
        return None, [bucket.AREA.unknown("cluster", why, bucket.ASK_AGAIN)]
    except HeadraceError as error:
        return None, [bucket.AREA.bad("cluster", str(error), of_bucket(str(error), "cluster"))]


async def _cluster(settings: Settings, clock: Clock) -> tuple[Settings, FormattedCluster | None]:
    """Return the settings for what else is asked of Postgres, and its cluster; None also if it cannot be asked, which
    is another finding.
    """
    try:
        hosts = await within(clock, AREA_SECONDS, postgres.several_hosts(settings, clock))
        known = of_the_primary(settings, hosts)
        url = await within(clock, AREA_SECONDS, asyncio.to_thread(url_with_password, known))
        return known, await within(clock, AREA_SECONDS, asyncio.to_thread(formatted_cluster, url))
    except (HeadraceError, TimeoutError):
        return settings, None


def _as_json(findings: Sequence[Finding]) -> str:
    rows = [
        {"area": f.area, "check": f.check, "level": f.level.value, "found": f.found, "to_do": f.to_do or None}
        for f in findings
    ]
    return json.dumps(rows)


def _print(findings: Sequence[Finding]) -> None:
    console = PlainConsole(soft_wrap=True)
    width = max(len(f"{f.area} {f.check}") for f in findings)
    for f in findings:
        console.print(
            Text.assemble(
                (f"{f.level.value:<{_WIDTH}} ", _STYLES[f.level]),
                f"{f.area} {f.check}".ljust(width + 2),
                one_line(f.found),
            )
        )
        if f.to_do:
            console.print(Text(" " * (width + _WIDTH + 3) + f"→ {one_line(f.to_do)}"))
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    console.print(", ".join(f"{count} {level.value}" for level, count in counts.items()))
