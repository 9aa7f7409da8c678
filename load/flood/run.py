"""One flood: a cluster with ordinary clients, the script, and the report.

Place: under `python -m load.flood`. The cluster and the clients are those of load/drills/.
Invariant: memory is the agents' resident set, read ten times a second. Recovery is measured without hands.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from load.bench_memory import resident_bytes
from load.drills.clients import PARTITIONS, TOPIC, DrillClients
from load.drills.operator import moved, readiness
from load.drills.run import PATIENCE_SECONDS, RECOVERED_EVENTS, SETTINGS, WARM_UP_RECORDS
from load.flood.scripts import FLOODS, LOAD_TOPIC
from load.torture.cluster import TortureCluster

MIB = 1024 * 1024
OWN: dict[str, Mapping[str, object]] = {"exhausted_pool": {"metastore.pool.size": 8}}
QUIET_SECONDS = 5.0
"""After the recovery, before memory is read once more."""


async def run_flood(name: str, write: Callable[[str], None]) -> bool:
    """Write the report; whether everything recovered and no acknowledged record is missing."""
    script = FLOODS[name]
    write(f"== {name}: {script.__doc__}")
    with tempfile.TemporaryDirectory(prefix="headrace-flood-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        settings = {**SETTINGS, **OWN.get(name, {})}
        async with TortureCluster(Path(place), 1, settings=settings) as cluster:
            clients = DrillClients(cluster.bootstrap)
            await asyncio.to_thread(_prepare, cluster, clients)
            before = await _metrics(cluster)
            memory = AgentMemory({name: agent.pid for name, agent in cluster.agents.items()})
            watching = asyncio.create_task(memory.watch())
            clients.begin()
            seen = await script(cluster)
            seconds = await _recovery(cluster, clients)
            await asyncio.sleep(QUIET_SECONDS)
            watching.cancel()
            await asyncio.to_thread(clients.stop)
            for line in [*seen, *(f"client: {line}" for line in clients.lines()), memory.line()]:
                write(f"  {line}")
            for line in moved(before, await _metrics(cluster)):
                write(f"  metrics: {line}")
            recovered = f"{seconds:.1f} s after its end" if seconds is not None else "NOT within two minutes"
            write(f"  recovered without hands: {recovered}")
            return seconds is not None and not set(clients.acknowledged) - set(clients.consumed)


class AgentMemory:
    """Of the agents: before, at most, and at the end."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before = self._most = self._now = self._read()

    def _read(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self._pids.items()}

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self._now = self._read()
            self._most = {name: max(size, self._most[name]) for name, size in self._now.items()}
            await asyncio.sleep(0.1)

    def line(self) -> str:
        """The agent that grew most."""
        name = max(self._pids, key=lambda name: self._most[name] - self._before[name])
        before, most, now = (sizes[name] / MIB for sizes in (self._before, self._most, self._now))
        return f"memory of {name}: {before:.0f} MiB before, at most {most:.0f}, {now:.0f} at the end"


def _prepare(cluster: TortureCluster, clients: DrillClients) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS), NewTopic(LOAD_TOPIC, PARTITIONS)]).values():
        created.result(60)
    clients.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(clients.consumed) < WARM_UP_RECORDS and time.monotonic() < until:
        time.sleep(0.1)


async def _metrics(cluster: TortureCluster) -> dict[str, float]:
    total: Counter[str] = Counter()
    for agent in cluster.agents.values():
        total.update(await asyncio.to_thread(agent.read_metrics))  # type: ignore[arg-type]
    return dict(total)


async def _recovery(cluster: TortureCluster, clients: DrillClients) -> float | None:
    """Seconds until all agents are ready and both clients make progress; None if that takes two minutes."""
    began, acks, reads = time.monotonic(), len(clients.acknowledged), len(clients.consumed)
    while time.monotonic() < began + PATIENCE_SECONDS:
        progress = min(len(clients.acknowledged) - acks, len(clients.consumed) - reads)
        if progress >= RECOVERED_EVENTS and not await readiness(cluster.agents):
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return None
