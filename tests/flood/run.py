"""One flood: a cluster with ordinary clients, the script, and the report.

Place: under `python -m tests.flood`. The cluster and the clients are those of tests/drills/.
Invariant: memory is the agents' resident set, read ten times a second. Recovery is measured without hands.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from load.benchmarks.memory import resident_bytes
from tests.drills.clients import TOPIC, DrillClients
from tests.drills.operator import moved
from tests.drills.recovery import begin_clients, seconds_to_recover, summed_metrics
from tests.drills.run import SETTINGS
from tests.flood.scripts import FLOODS, LOAD_TOPIC
from tests.torture.cluster import TortureCluster

MIB = 1024 * 1024
OWN: dict[str, Mapping[str, object]] = {"exhausted_pool": {"metastore.pool.size": 8}}
QUIET_SECONDS = 5.0
"""After the recovery, before memory is read once more."""


async def run_flood(name: str, write: Callable[[str], None]) -> bool:
    """Write the report; whether everything recovered, and each acknowledged record was read once and in order."""
    script = FLOODS[name]
    write(f"== {name}: {script.__doc__}")
    with tempfile.TemporaryDirectory(prefix="headrace-flood-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        settings = {**SETTINGS, **OWN.get(name, {})}
        async with TortureCluster(Path(place), 1, settings=settings) as cluster:
            clients = DrillClients(cluster.bootstrap)
            await asyncio.to_thread(begin_clients, cluster, clients, [TOPIC, LOAD_TOPIC])
            before = await summed_metrics(cluster)
            memory = AgentMemory({name: agent.pid for name, agent in cluster.agents.items()})
            watching = asyncio.create_task(memory.watch())
            clients.begin()
            seen = await script(cluster)
            seconds = await seconds_to_recover(cluster, clients)
            await asyncio.sleep(QUIET_SECONDS)
            watching.cancel()
            await asyncio.to_thread(clients.stop)
            for line in [*seen, *(f"client: {line}" for line in clients.lines()), memory.line()]:
                write(f"  {line}")
            for line in moved(before, await summed_metrics(cluster)):
                write(f"  metrics: {line}")
            recovered = f"{seconds:.1f} s after its end" if seconds is not None else "NOT within two minutes"
            write(f"  recovered without hands: {recovered}")
            return seconds is not None and clients.are_sound


class AgentMemory:
    """Memory of the agents: before, at most, and at the end."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before = self._most = self._now = self._read()

    def _read(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self._pids.items()}

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            self._now = self._read()
            self._most = {name: max(size, self._most[name]) for name, size in self._now.items()}
            await asyncio.sleep(0.1)

    def line(self) -> str:
        """The agent that grew most."""
        name = max(self._pids, key=lambda name: self._most[name] - self._before[name])
        before, most, now = (sizes[name] / MIB for sizes in (self._before, self._most, self._now))
        return f"memory of {name}: {before:.0f} MiB before, at most {most:.0f}, {now:.0f} at the end"
