"""States of a week in which nothing is lost: a setting, a key, a clock or an address is wrong. Does the doctor name it?

Place: run by `python -m tests.drills.operator_week` as `states`: one cluster for all of them; a drill is for what is
lost.
Invariant: a state ends before the next one begins. The doctor runs as an operator runs it: a process with the settings
of the first agent's machine, but for what the state changes.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import psycopg

from tests.drills.operator import TEXT_MAX, Findings, doctor, worse
from tests.drills.run import SETTINGS, ZONES
from tests.torture.cluster import TortureCluster
from tests.torture.servers import BUCKET

CLOCK_AHEAD_SECONDS = "1200"
"""S3 refuses requests from a quarter of an hour on."""
ROLE = "limited"


class DoctorRun(NamedTuple):
    """How the doctor is run in a state."""

    settings: Mapping[str, object]
    environment: Mapping[str, str] = MappingProxyType({})
    module: tuple[str, ...] = ("headrace.cli.main",)


class State(NamedTuple):
    """`names`: area and check of a line that names the cause, and words in it; or of another one, if the state has gone
    on.
    """

    title: str
    enter: Callable[[TortureCluster], AbstractAsyncContextManager[DoctorRun]]
    names: tuple[str, str, str]
    later: tuple[str, str, str] | None = None


def _sql(cluster: TortureCluster, *statements: str) -> None:
    """DoctorRun them as the owner, in a session that writes in each state."""
    with psycopg.connect(cluster.drills.url, autocommit=True, options="-c default_transaction_read_only=off") as owner:
        owner.execute("SET synchronous_commit = local")
        for statement in statements:
            owner.execute(statement.encode())


def _url(cluster: TortureCluster) -> str:
    return str(cluster.operator_settings["metastore.url"])


def _with_url(cluster: TortureCluster, url: str) -> DoctorRun:
    return DoctorRun(cluster.operator_settings | {"metastore.url": url})


@asynccontextmanager
async def only_reads(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    name = urlsplit(_url(cluster)).path.lstrip("/")
    _sql(cluster, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield DoctorRun(cluster.operator_settings)
    _sql(cluster, f"ALTER DATABASE {name} RESET default_transaction_read_only")


@asynccontextmanager
async def wrong_password(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    yield _with_url(cluster, _url(cluster).replace("@", "x@", 1))


@asynccontextmanager
async def lacking_right(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    granted = f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {ROLE}"
    _sql(cluster, f"CREATE ROLE {ROLE}", granted, f"REVOKE INSERT ON extents FROM {ROLE}")
    yield _with_url(cluster, f"{_url(cluster)}?options={quote(f'-c role={ROLE}')}")
    _sql(cluster, f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


@asynccontextmanager
async def connections_used_up(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    with ExitStack() as sessions:
        while True:
            try:
                sessions.enter_context(psycopg.connect(cluster.drills.url))
            except psycopg.OperationalError:
                break
        yield DoctorRun(cluster.operator_settings)


@asynccontextmanager
async def standby_away(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    _sql(cluster, "ALTER SYSTEM SET synchronous_standby_names = 'standby_a'", "SELECT pg_reload_conf()")
    yield DoctorRun(cluster.operator_settings)
    _sql(cluster, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")


@asynccontextmanager
async def silent_host(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before, _, after = _url(cluster).partition("@")
        yield _with_url(cluster, f"{before}@127.0.0.1:{silent.getsockname()[1]},{after}")


@asynccontextmanager
async def other_database(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    _sql(cluster, "CREATE DATABASE another ENCODING 'UTF8' TEMPLATE template0")
    yield _with_url(cluster, f"{_url(cluster).rpartition('/')[0]}/another")
    _sql(cluster, "DROP DATABASE another WITH (FORCE)")


@asynccontextmanager
async def revoked_key(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    yield DoctorRun(cluster.operator_settings, {"AWS_ACCESS_KEY_ID": "AKIAREVOKED"})


@asynccontextmanager
async def wrong_prefix(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    yield DoctorRun(cluster.operator_settings | {"bucket": f"s3://{BUCKET}/rum"})


@asynccontextmanager
async def clock_ahead(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    module = ("tests.drills.shifted_clock", CLOCK_AHEAD_SECONDS)
    yield DoctorRun(cluster.operator_settings, module=module)


@asynccontextmanager
async def address_of_a_store(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    proxy = cluster.agents["agent-1"].proxy
    port, proxy.target = proxy.target, cluster.s3.port
    yield DoctorRun(cluster.operator_settings)
    proxy.target = port


@asynccontextmanager
async def paused_agent(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    agent = cluster.agents["agent-1"]
    agent.signal(signal.SIGSTOP)
    yield DoctorRun(cluster.operator_settings)
    agent.signal(signal.SIGCONT)


@asynccontextmanager
async def wrong_zone(cluster: TortureCluster) -> AsyncIterator[DoctorRun]:
    yield DoctorRun(cluster.operator_settings | {"broker.rack": "A"})


STATES = (
    State("default_transaction_read_only is on", only_reads, ("postgres", "connect", "default_transaction_read_only")),
    State("the password of Postgres is wrong", wrong_password, ("postgres", "connect", "password authentication")),
    State("the role lacks a right", lacking_right, ("postgres", "rights", "extents (INSERT)")),
    State("all connections of Postgres are open", connections_used_up, ("postgres", "connect", "too many clients")),
    State("the synchronous standby is away", standby_away, ("postgres", "commits", "standby_a")),
    State("the first of two hosts is silent", silent_host, ("postgres", "hosts", "takes writes")),
    State("metastore.url names another database", other_database, ("postgres", "schema", "not formatted")),
    State("the key of S3 was revoked", revoked_key, ("bucket", "put", "UserNotFound")),
    State("the bucket's prefix is mistyped", wrong_prefix, ("bucket", "cluster", "not formatted")),
    State("this machine's clock is 20 minutes ahead", clock_ahead, ("bucket", "clock", "s ahead of the store's")),
    State("an agent advertises a store's address", address_of_a_store, ("cluster", "addresses", "no Kafka request")),
    State(
        "an agent's process is stopped",
        paused_agent,
        ("cluster", "addresses", "no Kafka request"),
        ("cluster", "agents", "gone: "),  # its lease has ended before the doctor looked
    ),
    State("broker.rack is mistyped", wrong_zone, ("cluster", "zones", "broker.rack=A")),
)


async def states_drill(write: Callable[[str], None]) -> bool:
    """Write for each state what the doctor said; whether it named each cause, and nothing when no state was left."""
    write("== states: A setting, a key, a clock or an address is wrong")
    with tempfile.TemporaryDirectory(prefix="headrace-states-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        async with TortureCluster(Path(place), 1, settings=SETTINGS, zones=ZONES) as cluster:
            before = await doctor(cluster.operator_settings)
            judged = [await _judge(state, cluster, before, write) for state in STATES]
            left = [line for line in worse(before, await doctor(cluster.operator_settings)) if line.startswith("bad")]
            for line in left:
                write(f"  LEFT     {line}")
    write(f"  {sum(judged)} of {len(judged)} causes were named")
    return all(judged) and not left


async def _judge(state: State, cluster: TortureCluster, before: Findings, write: Callable[[str], None]) -> bool:
    began = time.monotonic()
    async with state.enter(cluster) as run:
        found = await doctor(run.settings, run.module, run.environment)
    for area, check, words in filter(None, (state.names, state.later)):
        level, told = found.get((area, check), ("ok", ""))
        if is_named := level != "ok" and words in told:
            break
    write(f"  {state.title}: {'named' if is_named else 'MISSED'}, in {time.monotonic() - began:.1f} s")
    if is_named:
        write(f"    {level:<4} {area} {check}: {_around(told, words)}")
    for line in worse(before, found) if not is_named else ():
        write(f"    {line}")
    return is_named


def _around(told: str, words: str) -> str:
    """Return the text with these words, cut to TEXT_MAX."""
    start = max(0, told.index(words) + len(words) - TEXT_MAX)
    return f"{'… ' if start else ''}{told[start : start + TEXT_MAX]}"
