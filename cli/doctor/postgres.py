"""Judges the metastore's Postgres: can it be reached, is it safe, has it room, is its schema this version's.

Place: one area of `headrace doctor`. `examine` asks, the others decide on facts alone.
Invariant: changes nothing: it reads, and commits a message in the WAL that has no reader. A server that cannot be asked
is one finding, not an exception. Each check has a deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from headrace.cli.doctor.certificates import Dates, certificate_of, judge_certificate
from headrace.cli.doctor.deadline import in_time
from headrace.cli.doctor.findings import Area, Finding, Level, of_postgres, ways_past
from headrace.cli.doctor.servers import (
    judge_hosts,
    judge_locks,
    judge_no_connection,
    judge_pooler,
    judge_rights,
    judge_server,
    judge_standby_lags,
    judge_tables,
)
from headrace.cli.tables import iso_time
from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.api.compaction import ListedDamage
from headrace.metastore.api.metastore import END_THE_WAIT
from headrace.metastore.postgres.address import parsed, url_with_password
from headrace.metastore.postgres.bulk.bulk import oldest_bulk_write
from headrace.metastore.postgres.damage.damage import list_damage
from headrace.metastore.postgres.diagnosis.diagnosis import (
    HostState,
    LeftAside,
    find_pooler,
    left_aside,
    locked_tables,
    look_at_hosts,
    look_at_several,
    missing_rights,
    of_the_primary,
    places_with_tls,
    server_state,
    spill,
    standby_lags,
    table_states,
)
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migrate import plan_migration
from headrace.metastore.postgres.pool import open_pool
from headrace.metastore.postgres.server_check import check_encoding
from headrace.metastore.postgres.standbys.standbys import commit_wait
from headrace.metastore.postgres.statement import Pool
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError

AREA = Area("postgres")
DISK_FULL = "sqlstate=53100"
ANSWER_MS = 5_000
"""The limit of one statement; of the settings if theirs is lower."""
OPEN_SECONDS = 30.0
"""The limit of an attempt to connect, its look-up of names included."""
CHECK_SECONDS = 15.0
ASK_AGAIN = "run the doctor again; if it stays so, look at the server's load, its locks and the network"
_TOOK_TOO_LONG = "sqlstate=57014"
CLOCK_WARN_S, CLOCK_BAD_S = 1.0, 30.0
BULK_WRITE_BAD_S = 300.0
DAMAGE_SHOWN = 20
ROUND_TRIP_WARN_MS = 5.0
"""A commit is some round trips long."""


async def examine(settings: Settings, clock: Clock) -> list[Finding]:
    """Every finding about Postgres; the first one only, if it cannot be reached or cannot be the metastore."""
    hosts = await several_hosts(settings, clock)
    known = msgspec.structs.replace(
        of_the_primary(settings, hosts),
        metastore_pool_size=2,  # a commit, and a look at what it waits for
        metastore_statement_timeout_ms=min(settings.metastore_statement_timeout_ms, ANSWER_MS),
    )
    pool = await _opened(known, clock)
    if isinstance(pool, Finding):
        if "certificate" not in pool.found:
            return [pool]
        return [pool, *await _judged("certificate", clock, _certificates(settings, hosts, clock))]
    try:
        found = await _examine_open(pool, settings, known, clock)
        found += judge_hosts(hosts) if hosts else []
        return [*found, *await _judged("certificate", clock, _certificates(settings, hosts, clock))]
    except HeadraceError as error:
        to_do = of_postgres(str(error), "look into the server's log")
        return [AREA.bad("ask", f"{address_of(settings)}: {error}", to_do)]
    finally:
        await pool.close()


async def several_hosts(settings: Settings, clock: Clock) -> list[HostState]:
    """Return what each host says, if the address names more than one."""
    try:
        return await look_at_several(settings, clock)
    except HeadraceError:  # of the address, or of the command that prints the password: a connection says so
        return []


async def _opened(settings: Settings, clock: Clock) -> Pool | Finding:
    """Return the pool, or why there is none. A host that answers when it is asked alone gets a second attempt."""
    hosts: list[HostState] = []
    for _ in range(2):
        try:
            return await within(clock, OPEN_SECONDS, open_pool(settings.metastore_url, settings))
        except HeadraceError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"no answer in {OPEN_SECONDS:g} s"
        with suppress(HeadraceError):  # as above
            hosts = await look_at_hosts(settings, clock)
        if not any(host.takes_writes for host in hosts):
            break
    return judge_no_connection(hosts, _database_of(settings), f"{address_of(settings)}: {failure}")


async def _examine_open(pool: Pool, settings: Settings, known: Settings, clock: Clock) -> list[Finding]:
    """`known`: settings of the server that the pool is connected to."""
    _version, encoding = await pool.server()
    if bad := judge_encoding(encoding):
        return [bad]
    through = [*await _judged("pooler", clock, _pooler(pool))]
    if any(finding.level is Level.BAD for finding in through):
        return through
    await server_state(pool)  # the first statement is planned, and the connection warm
    before = clock.monotonic()
    state = await server_state(pool)
    round_trip_ms = (clock.monotonic() - before) * 1000
    ahead_s = state.now.timestamp() - clock.wall_ms() / 1000
    found = [judge_round_trip(address_of(settings), round_trip_ms), *through, *judge_server(state, settings)]
    found.append(judge_clock(ahead_s))
    commits = await _commits(pool, clock)
    found.append(commits)
    if commits.level is Level.BAD:  # commits that wait have locked tables, which end with the wait
        return found
    if locked := await locked_tables(pool):  # what reads them would wait
        return [*judge_locks(locked), *found]
    found += await _judged("rights", clock, _rights(pool))
    found += await _judged("standby lag", clock, _standby_lags(pool))
    found += await _judged("disk", clock, _disk(pool))
    found += await _judged("bloat", clock, _tables(pool))
    schema = await _judged("schema", clock, _schema(known))
    found += schema
    if all(each.level is Level.OK for each in schema):
        for check, work in (("compaction", _left_aside), ("damage", _damage), ("bulk writes", _bulk_writes)):
            found += await _judged(check, clock, work(pool))
    return found


async def _judged(check: str, clock: Clock, work: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """Return the findings of one check; an error is one, too, and so is an answer that does not come."""
    try:
        return await in_time(clock, CHECK_SECONDS, AREA, check, work, ASK_AGAIN)
    except HeadraceError as error:
        if _TOOK_TOO_LONG in str(error):
            return [AREA.unknown(check, str(error), ASK_AGAIN)]
        return [AREA.bad(check, str(error), of_postgres(str(error), "look into the server's log"))]


async def _pooler(pool: Pool) -> list[Finding]:
    return judge_pooler(await find_pooler(pool))


async def _certificates(settings: Settings, hosts: Sequence[HostState], clock: Clock) -> list[Finding]:
    silent = {host.place for host in hosts if host.error}
    try:
        places = [place for place in places_with_tls(settings) if place.text not in silent]
    except InvalidError:  # open_pool says so
        return []
    shown = await asyncio.gather(*(certificate_of(each.host, each.port, clock, is_postgres=True) for each in places))
    now_ms = clock.wall_ms()
    return [
        judge_certificate(AREA, place.text, dates, now_ms)
        for place, dates in zip(places, shown, strict=True)
        if isinstance(dates, Dates)  # a server without TLS has none, and one that is silent is named by the connection
    ]


async def _rights(pool: Pool) -> list[Finding]:
    return [judge_rights(await missing_rights(pool))]


async def _standby_lags(pool: Pool) -> list[Finding]:
    return [*judge_standby_lags(await standby_lags(pool))]


async def _disk(pool: Pool) -> list[Finding]:
    return [judge_disk(await _why_not_spilled(pool))]


async def _tables(pool: Pool) -> list[Finding]:
    return [*judge_tables(await table_states(pool))]


async def _left_aside(pool: Pool) -> list[Finding]:
    return [*judge_left_aside(await left_aside(pool))]


async def _damage(pool: Pool) -> list[Finding]:
    return [*judge_damage(*await list_damage(pool, DAMAGE_SHOWN))]


async def _bulk_writes(pool: Pool) -> list[Finding]:
    return [*judge_bulk_writes(await oldest_bulk_write(pool))]


async def _schema(settings: Settings) -> list[Finding]:
    return [await asyncio.to_thread(_judge_schema, settings)]


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


def _judge_schema(settings: Settings) -> Finding:
    try:
        url = url_with_password(settings)
        if formatted_cluster_id(url) is None:
            return AREA.bad("schema", "the database is not formatted", "headrace storage format")
        missing = {step.migration for step in plan_migration(url).steps}
    except HeadraceError as error:
        to_do = "use the version of Headrace that migrated it, or a newer one"
        return AREA.bad("schema", str(error), of_postgres(str(error), to_do))
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
    return f"{address_text(host, port)}/{_database_of(settings)}"


def _database_of(settings: Settings) -> str:
    try:
        name = parsed(settings.metastore_url).get("dbname")
    except InvalidError:
        return ""
    return str(name or os.environ.get("PGDATABASE", ""))
