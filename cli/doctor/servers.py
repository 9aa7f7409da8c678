"""Judges Postgres servers on facts: durability, standbys, connections, rights, locks, which host takes writes.

Place: one part of the area postgres of `headrace doctor`; postgres.py asks for the facts. The hosts of metastore.url
are judged one by one if several are named, or no connection was made.
Invariant: pure.
Each host is named with what it said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.cli.doctor.findings import NETWORK, Area, Finding, of_postgres
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import END_THE_WAIT
from headrace.metastore.postgres.diagnosis.diagnosis import (
    HostState,
    LockedTable,
    Pooler,
    Rights,
    ServerState,
    StandbyLag,
    TableState,
)

AREA = Area("postgres")
TRANSACTION_WARN_S, TRANSACTION_BAD_S = 60.0, 600.0
DEAD_ROWS_WARN = 100_000
WAL_KEPT_WARN_BYTES = 10 * 1024**3
AGE_WARN, AGE_BAD = 1_000_000_000, 1_800_000_000
"""Postgres refuses writes near 2,147,000,000."""
RIGHTS_SHOWN = 5


def judge_server(state: ServerState, settings: Settings) -> Iterator[Finding]:
    """Durability, standbys, connections, and what makes tables grow."""
    yield AREA.ok("version", f"Postgres {state.version}, {state.database_bytes / 1024**2:,.0f} MiB")
    yield from _durability(state)
    yield _standbys(state)
    yield _connections(state, settings)
    yield _transactions(state)
    if state.wal_kept_for_idle_slots > WAL_KEPT_WARN_BYTES:
        found = f"{state.wal_kept_for_idle_slots / 1024**3:,.0f} GiB of WAL are kept for a replication slot without use"
        yield AREA.warn("replication slots", found, "drop the slot, or connect its standby: the disk fills up")
    age = state.oldest_transaction_age
    if age > AGE_WARN:
        judge = AREA.bad if age > AGE_BAD else AREA.warn
        yield judge("transaction ids", f"the oldest is {age:,} transactions old", "VACUUM FREEZE: writes end near 2^31")
    if not state.autovacuum:
        yield AREA.bad("autovacuum", "autovacuum=off: tables grow without end", "set autovacuum=on")


def _durability(state: ServerState) -> Iterator[Finding]:
    unsafe = [
        *([] if state.fsync else ["fsync=off"]),
        *([] if state.full_page_writes else ["full_page_writes=off"]),
        *(["synchronous_commit=off"] if state.synchronous_commit == "off" else []),
    ]
    if unsafe:
        found = f"{', '.join(unsafe)}: a crash of its machine loses acknowledged records"
        yield AREA.bad("durability", found, "set them to on")
    else:
        yield AREA.ok("durability", f"fsync=on full_page_writes=on synchronous_commit={state.synchronous_commit}")


def _standbys(state: ServerState) -> Finding:
    names = state.synchronous_standby_names
    if names and not state.synchronous_standbys + state.hidden_standbys:
        found = f"{state.standbys or 'none'} connected, none of them in synchronous_standby_names={names!r}"
        return AREA.bad("standbys", f"{found}: no commit ends", END_THE_WAIT)
    if not state.standbys:
        to_do = "add a standby, or accept that a lost disk means a restore from backup (docs/operate/POSTGRES.md)"
        return AREA.warn("standbys", "none is connected", to_do)
    if not names:
        to_do = "set synchronous_standby_names, or accept that a promotion loses the last commits"
        return AREA.warn("standbys", f"{state.standbys} connected, none of them synchronous", to_do)
    if state.hidden_standbys:
        seen = "only a role with pg_monitor sees which is synchronous"
        return AREA.ok("standbys", f"{state.standbys} connected, synchronous_standby_names={names!r}: {seen}")
    return AREA.ok("standbys", f"{state.standbys} connected, {state.synchronous_standbys} of them synchronous")


def _connections(state: ServerState, settings: Settings) -> Finding:
    """Room for one more process of these settings."""
    needed = settings.metastore_pool_size + settings.metastore_reader_connections
    free = state.max_connections - state.reserved_connections - state.connections
    found = f"{state.connections} of {state.max_connections} are open, {max(free, 0)} free; a process opens {needed}"
    if free < needed:
        return AREA.bad("connections", found, "raise max_connections, or lower metastore.pool.size")
    if free < 2 * needed:
        return AREA.warn("connections", found, "raise max_connections before you add agents")
    return AREA.ok("connections", found)


def _transactions(state: ServerState) -> Finding:
    if state.prepared_transactions:
        found = f"{state.prepared_transactions} prepared transactions wait for their end"
        return AREA.warn("transactions", found, "COMMIT or ROLLBACK PREPARED them: VACUUM waits for them")
    found = f"the longest is open for {state.longest_transaction_s:.0f} s"
    if state.longest_transaction_s > TRANSACTION_WARN_S:
        judge = AREA.bad if state.longest_transaction_s > TRANSACTION_BAD_S else AREA.warn
        return judge("transactions", found, "end it (pg_stat_activity): VACUUM cannot clean up behind it")
    return AREA.ok("transactions", found)


def judge_pooler(pooler: Pooler | None) -> list[Finding]:
    """Return no line without a pooler."""
    if pooler is None:
        return []
    found = f"a pooler in {pooler.mode} mode is in front of Postgres"
    if pooler.problem:
        to_do = "pool_mode=session, or PgBouncer 1.21 or newer with pool_mode=transaction, max_prepared_statements > 0"
        return [AREA.bad("pooler", f"{found}: {pooler.problem}", to_do)]
    return [AREA.ok("pooler", found)]


def judge_rights(rights: Rights) -> Finding:
    """Judge whether the role may do what an agent does."""
    grant = "headrace postgres setup"
    if not rights.uses_schema:
        found = f"the role {rights.role} may use no schema of its search_path"
        return AREA.bad("rights", found, f"correct its search_path, or {grant}")
    unread = [each for each in rights.missing if "(SELECT" in each and not each.startswith("cluster ")]
    if not rights.writes and not unread:  # of the cluster's row, a reader does not see the secrets
        why = f"the role {rights.role} only reads, so the rights of agents are not seen"
        return AREA.unknown("rights", why, "run the doctor with the agents' role to judge them")
    if rights.missing:
        more = len(rights.missing) - RIGHTS_SHOWN
        shown = ", ".join(rights.missing[:RIGHTS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return AREA.bad("rights", f"the role {rights.role} lacks: {shown}", grant)
    return AREA.ok("rights", f"the role {rights.role} may read and write each table")


def judge_locks(locked: Sequence[LockedTable]) -> Iterator[Finding]:
    """One line for each table that a session has locked: agents wait for it, and give up."""
    for table in locked:
        found = f"{table.name} is locked against all: pid={table.process_id} application={table.application!r}"
        to_do = f"unless it is headrace migrate: SELECT pg_terminate_backend({table.process_id}), then run this again"
        yield AREA.bad("locks", found, to_do)


def judge_tables(tables: Sequence[TableState]) -> Iterator[Finding]:
    """One line for each table with more dead rows than live ones; one for all if there is none."""
    bloated = [t for t in tables if t.dead_rows > max(DEAD_ROWS_WARN, t.live_rows)]
    for table in bloated:
        found = f"{table.name} has {table.dead_rows:,} dead rows and {table.live_rows:,} live ones"
        yield AREA.warn("bloat", found, f"VACUUM {table.name}; is there an old transaction, or too little autovacuum?")
    if not bloated:
        yield AREA.ok("bloat", "no table has more dead rows than live ones")


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
