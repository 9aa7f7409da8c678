"""Judges a Postgres server on facts: durability, standbys, connections, what lets tables grow, rights, locks, a pooler.

Place: one part of the area postgres of `headrace doctor`; postgres.py asks for the facts.
Invariant: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.api.standbys import END_THE_WAIT
from headrace.metastore.postgres.diagnosis.diagnosis import LockedTable, Rights, ServerState, TableState
from headrace.metastore.postgres.diagnosis.pooler import Pooler

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
