"""Judges the metastore's Postgres: can it be reached, is it safe, has it room, is its schema this version's.

Place: one area of `headrace doctor`. `examine` asks, `judge_server` and `judge_tables` decide on facts alone.
Invariant: changes nothing: it reads, and commits a message in the WAL that has no reader. A server that cannot be asked
is one finding, not an exception.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

import msgspec

from headrace.cli.damage.commands import ways_past
from headrace.cli.doctor.findings import Area, Finding, Level
from headrace.cli.times import iso_time
from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.api.damage import ListedDamage
from headrace.metastore.api.standbys import END_THE_WAIT
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.bulk.bulk import oldest_bulk_write
from headrace.metastore.postgres.damage.damage import list_damage
from headrace.metastore.postgres.diagnosis.diagnosis import (
    LeftAside,
    LockedTable,
    ServerState,
    TableState,
    left_aside,
    locked_tables,
    server_state,
    spill,
    table_states,
)
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migration_plan import plan_migration
from headrace.metastore.postgres.pool import open_pool
from headrace.metastore.postgres.server_check import check_encoding
from headrace.metastore.postgres.standbys.standbys import commit_wait
from headrace.metastore.postgres.statement import Pool
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError

AREA = Area("postgres")
DISK_FULL, DENIED = "sqlstate=53100", "sqlstate=42501"
CLOCK_WARN_S, CLOCK_BAD_S = 1.0, 30.0
TRANSACTION_WARN_S, TRANSACTION_BAD_S = 60.0, 600.0
BULK_WRITE_BAD_S = 300.0
DEAD_ROWS_WARN = 100_000
WAL_KEPT_WARN_BYTES = 10 * 1024**3
AGE_WARN, AGE_BAD = 1_000_000_000, 1_800_000_000
"""Postgres refuses writes near 2,147,000,000."""
DAMAGE_SHOWN = 20
ROUND_TRIP_WARN_MS = 5.0
"""A commit is some round trips long."""


async def examine(settings: Settings, clock: Clock) -> list[Finding]:
    """Every finding about Postgres; the first one only, if it cannot be reached or cannot be the metastore."""
    two = msgspec.structs.replace(settings, metastore_pool_size=2)  # a commit, and a look at what it waits for
    try:
        pool = await open_pool(settings.metastore_url, two)
    except HeadraceError as error:
        return [
            AREA.bad("connect", f"{address_of(settings)}: {error}", "check metastore.url, the server and the network")
        ]
    try:
        _version, encoding = await pool.server()
        if bad := judge_encoding(encoding):
            return [bad]
        await server_state(pool)  # the first statement is planned, and the connection warm
        before = clock.monotonic()
        state = await server_state(pool)
        round_trip_ms = (clock.monotonic() - before) * 1000
        ahead_s = state.now.timestamp() - clock.wall_ms() / 1000
        commits = await _commits(pool, clock)
        if commits.level is Level.BAD:  # commits that wait have locked tables, which end with the wait
            return [*judge_server(state, settings), commits]
        locked = await locked_tables(pool)
        if locked:  # what reads them would wait
            return [*judge_locks(locked), *judge_server(state, settings), commits]
        tables = await table_states(pool)
        schema = await asyncio.to_thread(_schema, settings.metastore_url)
        aside = await left_aside(pool) if schema.level is Level.OK else []
        damaged, damaged_count = await list_damage(pool, DAMAGE_SHOWN) if schema.level is Level.OK else ([], 0)
        waits_s = await oldest_bulk_write(pool) if schema.level is Level.OK else 0.0
        refusal = await _why_not_spilled(pool)
    except HeadraceError as error:
        to_do = "headrace postgres setup" if DENIED in str(error) else "look into the server's log"
        return [AREA.bad("ask", f"{address_of(settings)}: {error}", to_do)]
    finally:
        await pool.close()
    return [
        judge_round_trip(address_of(settings), round_trip_ms),
        *judge_server(state, settings),
        judge_clock(ahead_s),
        commits,
        judge_disk(refusal),
        *judge_tables(tables),
        schema,
        *judge_left_aside(aside),
        *judge_damage(damaged, damaged_count),
        *judge_bulk_writes(waits_s),
    ]


def judge_round_trip(where: str, milliseconds: float) -> Finding:
    """Judge the round trip of one statement on an open connection."""
    found = f"{where}: a statement takes {milliseconds:.1f} ms"
    if milliseconds > ROUND_TRIP_WARN_MS:
        return AREA.warn("connect", found, "run agents in the zones of the server, or give it more CPU")
    return AREA.ok("connect", found)


def judge_encoding(encoding: str | None) -> Finding | None:
    """Return a finding, or None if the database can store every name of a client."""
    try:
        check_encoding(encoding)
    except InvalidError as error:
        to_do = "format a database in UTF8; pg_dump and headrace migrate --restored move an old cluster"
        return AREA.bad("encoding", str(error), to_do)
    return None


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


def judge_clock(ahead_s: float) -> Finding:
    """The database's clock against this machine's, in seconds. Timestamps of records come from agents' clocks."""
    found = f"this machine's clock is {abs(ahead_s):.1f} s {'behind' if ahead_s > 0 else 'ahead of'} the database's"
    if abs(ahead_s) > CLOCK_WARN_S:
        judge = AREA.bad if abs(ahead_s) > CLOCK_BAD_S else AREA.warn
        return judge("clock", found, "run NTP on both: timestamps of records and retention depend on it")
    return AREA.ok("clock", found)


async def _commits(pool: Pool, clock: Clock) -> Finding:
    """Judge a commit that changes nothing: reads may be answered while every commit waits."""
    before = clock.monotonic()
    try:
        state = await commit_wait(pool, pool)
    except HeadraceError as error:
        return AREA.bad("commits", str(error), "look at Postgres' disk (WAL), its log, and pg_stat_activity.wait_event")
    if state is not None:
        return AREA.bad("commits", f"{state.wait}, for {state.waiting_s:.0f} s", END_THE_WAIT)
    return AREA.ok("commits", f"a commit takes {(clock.monotonic() - before) * 1000:.1f} ms")


async def _why_not_spilled(pool: Pool) -> str:
    """Empty if the server could write a temporary file."""
    try:
        await spill(pool)
    except UnavailableError as error:
        return str(error)
    return ""


def judge_disk(refusal: str) -> Finding:
    """`refusal`: of a query that writes a temporary file; Postgres tells no free space."""
    if refusal:
        to_do = "make room on Postgres' disk" if DISK_FULL in refusal else "look into the server's log"
        return AREA.bad("disk", f"a temporary file of 3 MB was refused: {refusal}", to_do)
    return AREA.ok("disk", "a temporary file of 3 MB could be written")


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


def judge_left_aside(found: Sequence[LeftAside]) -> Iterator[Finding]:
    """One line for each file and partition that compaction cannot work on; one for all if there is none."""
    for what, why in found:
        yield AREA.bad("compaction", f"{what}: {why}", "look into the worker's log and run headrace audit")
    if not found:
        yield AREA.ok("compaction", "every file could be merged, and every compacted partition cleaned")


def judge_damage(damaged: Sequence[ListedDamage], count: int) -> Iterator[Finding]:
    """One line for each extent that the bucket has damaged, with the commands that go past it."""
    for one in damaged:
        found = (
            f"{one.topic}:{one.partition_index} offsets={one.first_offset}-{one.last_offset} cannot be read:"
            f" {one.kind.name.lower()} file={one.extent.file_id} since={iso_time(one.found_ms)} {one.why}"
        )
        yield AREA.bad("damage", found, ways_past(one.topic, one.partition_index, one.first_offset))
    if count > len(damaged):
        yield AREA.bad("damage", f"{count - len(damaged)} more damaged extents", "headrace damage list")
    if not count:
        yield AREA.ok("damage", "no agent and no worker found damaged bytes in the bucket")


def judge_bulk_writes(waits_s: float) -> Iterator[Finding]:
    """A decided bulk write without progress, which agents complete after one to two minutes."""
    if waits_s > BULK_WRITE_BAD_S:
        found = f"a decided bulk write has made no progress for {waits_s:,.0f} s: its topics cannot grow"
        yield AREA.bad("bulk writes", found, "look into the agents' logs for finish_bulk_writes")


def _schema(url: str) -> Finding:
    try:
        if formatted_cluster_id(url) is None:
            return AREA.bad("schema", "the database is not formatted", "headrace storage format")
        missing = {step.migration for step in plan_migration(url).steps}
    except HeadraceError as error:
        return AREA.bad("schema", str(error), "use the version of Headrace that migrated it, or a newer one")
    if missing:
        return AREA.bad("schema", f"{len(missing)} migrations are missing: {min(missing)} ...", "headrace migrate")
    return AREA.ok("schema", "every migration of this version is there")


def address_of(settings: Settings) -> str:
    """Host, port and database of metastore.url, without its password."""
    try:
        parts = parsed(settings.metastore_url)
    except InvalidError:  # open_pool says so
        return "metastore.url"
    host = parts.get("host") or os.environ.get("PGHOST", "local")
    port = parts.get("port") or os.environ.get("PGPORT", "5432")
    return f"{address_text(host, port)}/{parts.get('dbname') or os.environ.get('PGDATABASE', '')}"
