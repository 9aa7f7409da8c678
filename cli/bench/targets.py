"""Targets that run: where clients connect, and which processes are measured.

Place: opened by run.py, one after the other, and closed in reverse.
Invariant: what is started here ends here, by process id, and its data is in the folder that the caller gives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.bench.http_access import NAMES, OPEN, HttpAccess
from headrace.cli.bench.target_spec import DEV, HEADRACE, KAFKA, TargetSpec
from headrace.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """A running system. `roots`: the process trees of each kind of its processes; empty if not known."""

    name: str
    bootstrap: str
    version: str
    roots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rig_roots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Servers that the target uses and that are no part of it, as an S3 server: shown apart."""
    metrics: tuple[str, ...] = ()
    """host:port of each process with /metrics."""
    access: HttpAccess = OPEN
    metastore_url: str | None = None
    replication_factor: int = 1
    """The one of the topics that the bench creates."""


@asynccontextmanager
async def open_target(spec: TargetSpec, folder: Path, jars: Path | None) -> AsyncIterator[MeasuredTarget]:
    """Start or reach what `spec` names; errors as the target's own."""
    if spec.kind in (DEV, HEADRACE):
        from headrace.cli.bench.headrace_target import open_headrace  # here: it needs Postgres' client

        async with open_headrace(spec, folder) as target:
            yield target
    elif spec.kind == KAFKA:
        from headrace.cli.bench.kafka_target import open_kafka

        async with open_kafka(spec, folder, jars) as target:
            yield target
    else:
        yield _running(spec)


def _running(spec: TargetSpec) -> MeasuredTarget:
    settings = dict(spec.settings)
    http, pid = settings.pop("http", ""), settings.pop("pid", "")
    access = HttpAccess.of(settings)
    if settings.keys() - NAMES or (pid and not pid.isdecimal()):
        known = ", ".join(sorted(NAMES))
        raise ConfigError(f"of a running target only http=HOST:PORT, pid=N, {known} can be given: {spec.where}")
    return MeasuredTarget(
        spec.name,
        spec.where,
        version="",
        roots={"server": (int(pid),)} if pid else {},
        metrics=(http,) if http else (),
        access=access,
    )
