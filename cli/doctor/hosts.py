"""Judges the servers that metastore.url names, one by one: which takes writes, which follows, which is silent.

Place: one part of the area postgres of `headrace doctor`: if several hosts are named, or no connection was made.
Invariant: pure. Each host is named with what it said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.cli.doctor.findings import Area, Finding
from headrace.cli.doctor.remedies import NETWORK, of_postgres
from headrace.metastore.postgres.diagnosis.diagnosis import StandbyLag
from headrace.metastore.postgres.diagnosis.hosts import HostState

AREA = Area("postgres")
LAG_WARN_BYTES = 64 * 1024**2
LAG_WARN_S = 60.0
_RESET = {
    "user": "ALTER ROLE … RESET default_transaction_read_only",
    "database": "ALTER DATABASE … RESET default_transaction_read_only",
    "database user": "ALTER ROLE … IN DATABASE … RESET default_transaction_read_only",
}
"""What ends it, by pg_settings.source."""


def judge_no_connection(hosts: Sequence[HostState], database: str, error: str) -> Finding:
    """Judge an address to which no connection was made. `error`: of the attempt, where the hosts say nothing."""
    found = "; ".join(f"{host.place}/{database}: {_said(host)}" for host in hosts) or error
    sources = [host.reads_only for host in hosts if host.reads_only and not host.error]
    if sources:
        to_do = _RESET.get(sources[0], "set default_transaction_read_only=off in the server's configuration")
    elif any(host.error for host in hosts) or not hosts:
        to_do = of_postgres(" ".join(host.error for host in hosts) or error)
    elif any(host.is_standby for host in hosts):
        to_do = "name the primary in metastore.url, or promote the standby (docs/operate/POSTGRES.md)"
    else:
        to_do = NETWORK
    return AREA.bad("connect", f"{found}{_although(hosts, error)}", to_do)


def _although(hosts: Sequence[HostState], error: str) -> str:
    """Return the error of the attempt, if each host does well when it is asked alone."""
    return f" ({error})" if any(host.takes_writes for host in hosts) else ""


def _said(host: HostState) -> str:
    if host.error:
        return host.error
    if host.is_standby:
        return "a standby, which takes no writes (read-only)"
    if host.reads_only:
        return f"takes no writes: default_transaction_read_only=on (read-only), set for: {host.reads_only}"
    return "takes writes"


def judge_hosts(hosts: Sequence[HostState]) -> Iterator[Finding]:
    """Judge an address of several hosts, of which one was connected to."""
    described = "; ".join(f"{number}. {host.place}: {_said(host)}" for number, host in enumerate(hosts, 1))
    primaries = [host for host in hosts if host.takes_writes]
    if len(primaries) > 1:
        to_do = "stop the one that is not the metastore (cluster life says which is; docs/operate/POSTGRES.md)"
        yield AREA.bad("hosts", f"{len(primaries)} servers take writes: {described}", to_do)
    elif silent := [host for host in hosts if host.error]:
        to_do = f"each new connection may wait for it first: {of_postgres(silent[0].error, 'start it, or correct it')}"
        yield AREA.warn("hosts", described, to_do)
    else:
        yield AREA.ok("hosts", described)
    yield from _judge_followers(hosts, primaries)


def _judge_followers(hosts: Sequence[HostState], primaries: Sequence[HostState]) -> Iterator[Finding]:
    for host in hosts:
        if host.error or not host.is_standby:
            continue
        behind = max((primary.wal_bytes for primary in primaries), default=host.wal_bytes) - host.wal_bytes
        if not host.receives:
            found = f"{host.place} receives nothing from a primary, and has not replayed {_size(behind)}"
            yield AREA.warn("replica lag", found, "look at its primary_conninfo and log: promoted, it lacks commits")
        elif behind > LAG_WARN_BYTES:
            to_do = "wait for it before you promote it; is its replay paused, its disk slow?"
            yield AREA.warn("replica lag", f"{host.place} has not replayed {_size(behind)}", to_do)
        else:
            yield AREA.ok("replica lag", f"{host.place} has not replayed {_size(behind)}")


def judge_standby_lags(lags: Sequence[StandbyLag]) -> Iterator[Finding]:
    """Judge the standbys that are connected to the primary, as it sees them."""
    for lag in lags:
        if lag.unflushed_bytes is None or lag.unreplayed_bytes is None:
            why = f"only a role with pg_monitor sees how far {len(lags)} standbys are behind"
            yield AREA.unknown("standby lag", why, "GRANT pg_monitor TO the role of metastore.url")
            return
        found = f"{lag.name} has not flushed {_size(lag.unflushed_bytes)}, not replayed {_size(lag.unreplayed_bytes)}"
        if lag.replay_lag_s is not None:
            found += f", and replays {lag.replay_lag_s:.0f} s late"
        if lag.unflushed_bytes > LAG_WARN_BYTES:
            to_do = "look at its network and disk: a promotion loses what it has not flushed"
            yield AREA.warn("standby lag", found, to_do)
        elif lag.unreplayed_bytes > LAG_WARN_BYTES or (lag.replay_lag_s or 0.0) > LAG_WARN_S:
            to_do = "is its replay paused, or its disk slow? A promotion replays the rest first"
            yield AREA.warn("standby lag", found, to_do)
        else:
            yield AREA.ok("standby lag", found)


def _size(count: int) -> str:
    return f"{max(count, 0) / 1024**2:,.1f} MiB"
