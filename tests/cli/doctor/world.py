"""What the doctor's tests share: how it is run, statements, agents that are registered and do not run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import psycopg

from headrace.cli.doctor import cluster
from headrace.cli.doctor.findings import Finding
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AGENT_FEATURES, AgentRegistration, Listener
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from tests.metastore.sessions import beat

Line = tuple[str, str, str | None]
"""Level, what was found, what to do."""
Doctor = Callable[..., dict[str, Line]]
"""Flags -> "area check" -> the worst line of that check."""
ORDER = ("ok", "unknown", "warn", "bad")


class ShiftedClock(SystemClock):
    """A machine of which the clock is wrong by so many seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_ms = round(ahead_s * 1000)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


def on(url: str, *statements: str) -> None:
    """Run them as the owner of the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def lines(findings: Sequence[Finding]) -> dict[str, Line]:
    """Return the worst line of each check."""
    found: dict[str, Line] = {}
    for each in sorted(findings, key=lambda finding: ORDER.index(finding.level.value)):
        found[each.check] = (each.level.value, each.found, each.to_do)
    return found


async def register(
    url: str,
    node_id: int,
    *,
    listener: Listener,
    zone: str | None = None,
    without: Sequence[str] = (),
    is_live: bool = True,
) -> None:
    """Register an agent of a release without these features, as its process would; live until its lease ends."""
    metastore = await PostgresMetastore.open(url, Settings(metastore_url=url, metastore_pool_size=1))
    try:
        features = {name: levels for name, levels in AGENT_FEATURES.items() if name not in without}
        place = (listener.host, listener.port, zone)
        agent = await metastore.cluster.register_agent(
            AgentRegistration(node_id, uuid.uuid4(), *place, features=features, listeners=(listener,))
        )
        if is_live:
            assert not (await beat(metastore, agent)).is_fenced
    finally:
        await metastore.close()


async def examined_cluster(settings: Settings, clock: SystemClock | None = None) -> dict[str, Line]:
    return lines(await cluster.examine(settings, None, clock or SystemClock()))


def at(port: int, name: str = "PLAINTEXT", host: str = "127.0.0.1") -> Listener:
    return Listener(name, host, port, 0)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].rstrip("/"))
