"""`headrace doctor`: one line for each thing that a cluster depends on, with what to do about it.

Place: run by people before a cluster starts, and when something is wrong; on a machine that runs agents.
Invariant: it changes nothing, but for a few objects below doctor/ in the bucket, which it deletes. The exit status is
1 if anything is bad.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence

from rich.text import Text

from headrace.cli.doctor import bucket, cluster, host, postgres, tables
from headrace.cli.doctor.findings import Finding, Level
from headrace.cli.options import S3, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.plain_console import PlainConsole
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.postgres.formatted import FormattedCluster, formatted_cluster
from headrace.metastore.postgres.password import url_with_password
from headrace.storage.client_text import one_line
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.open import StoreOptions, open_store

DESCRIPTION = """\
Look at everything that a cluster depends on: Postgres, the bucket, this machine, the agents' addresses,
and with tables.catalog.name the tables of topics.
Each line is ok, warn or bad, and says what to do. Run it where agents or clients run, with the agents'
settings. The status is 1 if a line is bad.

  headrace doctor -c agent.properties
  headrace doctor --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace --json
"""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")
    add_settings(parser, ("metastore.url", "bucket", "tables.catalog.name", "tables.catalog.uri", *S3), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one is bad."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    findings = asyncio.run(examine(settings, SystemClock(), random.Random()))
    write(_as_json(findings)) if args.json else _print(findings)
    return 1 if any(finding.level is Level.BAD for finding in findings) else 0


async def examine(settings: Settings, clock: Clock, rng: random.Random) -> list[Finding]:
    """Every finding, area by area. The cluster is looked at only if Postgres is in order."""
    of_postgres, of_cluster = await asyncio.gather(postgres.examine(settings, clock), _cluster(settings))
    # after it: a store's client takes a second of CPU to load, in which no answer of Postgres is read
    of_bucket = await bucket.examine(settings, clock, rng, of_cluster)
    found = [*host.judge(host.facts()), *of_postgres, *of_bucket]
    if any(f.level is Level.BAD and f.check in ("connect", "ask", "schema", "locks", "commits") for f in of_postgres):
        return found
    readable = all(f.level is not Level.BAD for f in of_bucket)
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng) if readable else None
    try:
        found += await cluster.examine(settings, store, clock)
    finally:
        if store is not None:
            await store.close()
    return [*found, *await tables.examine(settings)] if readable else found


async def _cluster(settings: Settings) -> FormattedCluster | None:
    """Return the metastore's cluster; None also if Postgres cannot be asked, which is another finding."""
    try:
        return await asyncio.to_thread(formatted_cluster, url_with_password(settings))
    except HeadraceError:
        return None


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
                (f"{f.level.value:<4} ", _STYLES[f.level]), f"{f.area} {f.check}".ljust(width + 2), one_line(f.found)
            )
        )
        if f.to_do:
            console.print(Text(" " * (width + 7) + f"→ {one_line(f.to_do)}"))
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    console.print(", ".join(f"{count} {level.value}" for level, count in counts.items()))
