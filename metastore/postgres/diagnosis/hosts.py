"""What each server of an address says, asked one by one.

Place: under `headrace doctor`, where metastore.url names several hosts, or none of them takes writes. libpq tries them
in order and reports one failure, which may be the standby's refusal in place of the primary's silence.
Invariant: reads only; every host is asked, all at once, and each has HOST_SECONDS.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo

from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.postgres import pool
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.statement import Statement
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError

HOST_SECONDS = 8.0
"""More than the limit of one connection attempt, so that its error is heard."""
_HOST = Statement("diagnose_host", writes=False)


class HostState(NamedTuple):
    """One server. `error` is empty if it answered; the others are meant only then."""

    place: str
    """Host and port, or the folder of its socket and the port."""
    url: str
    """Address of this server alone. It may have a password: not for people."""
    error: str = ""
    is_standby: bool = False
    reads_only: str = ""
    """The place where default_transaction_read_only=on was set, in the words of pg_settings.source; empty: nowhere."""
    wal_bytes: int = 0
    """Its position in the WAL: as written by a primary, as replayed by a standby."""
    receives: bool = False
    """Whether it receives WAL from another server."""

    @property
    def takes_writes(self) -> bool:
        return not (self.error or self.is_standby or self.reads_only)


class ServerPlace(NamedTuple):
    """The place at which a server is reached by TCP."""

    text: str
    host: str
    port: int


def places_with_tls(settings: Settings) -> list[ServerPlace]:
    """Return the servers of metastore.url that may be asked for TLS: none by a socket, none with sslmode=disable.

    InvalidError for a malformed address.
    """
    arguments = parsed(settings.metastore_url)
    if (arguments.get("sslmode") or os.environ.get("PGSSLMODE", "")) == "disable":
        return []
    found = [(each.get("hostaddr") or each.get("host") or "", int(each["port"] or 5432)) for each in _places(arguments)]
    return [ServerPlace(address_text(host, port), host, port) for host, port in found if host and host[0] not in "/@"]


async def look_at_several(settings: Settings, clock: Clock) -> list[HostState]:
    """Return the hosts if there is more than one. InvalidError for a malformed address; errors as look_at_hosts."""
    return await look_at_hosts(settings, clock) if len(_places(parsed(settings.metastore_url))) > 1 else []


async def look_at_hosts(settings: Settings, clock: Clock) -> list[HostState]:
    """Return the hosts of metastore.url in its order. Errors as the command that prints the password."""
    arguments = await pool.connection_arguments(settings.metastore_url, settings)()
    url = settings.metastore_url
    return await asyncio.gather(*(_look(arguments | place, of_one(url, place), clock) for place in _places(arguments)))


def of_the_primary(settings: Settings, hosts: Sequence[HostState]) -> Settings:
    """Return settings of the one server that takes writes: no connection waits for the others. The same settings if
    there is no such server, or more than one.
    """
    primaries = [host.url for host in hosts if host.takes_writes]
    return msgspec.structs.replace(settings, metastore_url=primaries[0]) if len(primaries) == 1 else settings


def of_one(url: str, place: dict[str, str]) -> str:
    """Return the address with the host, hostaddr and port of one server."""
    return make_conninfo(url, **place)


def _places(arguments: dict[str, Any]) -> list[dict[str, str]]:
    """Return what one connection to each host has for libpq's parameters host, hostaddr and port."""
    given = {
        "host": arguments.get("host") or os.environ.get("PGHOST", ""),
        "hostaddr": arguments.get("hostaddr") or os.environ.get("PGHOSTADDR", ""),
        "port": str(arguments.get("port") or os.environ.get("PGPORT") or "5432"),
    }
    lists = {name: str(value).split(",") for name, value in given.items() if value}
    count = max(len(values) for values in lists.values())
    return [{name: values[i] if len(values) > 1 else values[0] for name, values in lists.items()} for i in range(count)]


async def _look(arguments: dict[str, Any], url: str, clock: Clock) -> HostState:
    host = arguments.get("host") or arguments.get("hostaddr") or "local"
    state = HostState(address_text(host, arguments["port"] or "5432"), url)
    try:
        return state._replace(**await within(clock, HOST_SECONDS, _ask(arguments)))
    except TimeoutError:
        return state._replace(error=f"no answer in {HOST_SECONDS:g} s (timeout)")
    except HeadraceError as error:
        return state._replace(error=str(error))


async def _ask(arguments: dict[str, Any]) -> dict[str, Any]:
    with translated("connect", writes=False):
        connection = await AsyncConnection.connect(**arguments | {"target_session_attrs": "any"})
        try:
            row = await (await connection.execute(_HOST.sql, prepare=False)).fetchone()
        finally:
            await connection.close()
    if row is None:
        raise psycopg.DataError("no row")
    is_standby, reads_only, wal_bytes, receives = row
    return {"is_standby": is_standby, "reads_only": reads_only, "wal_bytes": wal_bytes, "receives": receives}
