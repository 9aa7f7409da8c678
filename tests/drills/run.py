"""One drill: a cluster with clients, the script, and the report.

Place: under `python -m tests.drills`. Three agents with the defaults of production behind proxies, a real Postgres with
fsync, a real S3 server or an emulator of another (tests/torture/cluster.py); two agents in zone a, one in zone b.
Invariant: recovery is measured without hands: all agents are ready, and both clients make progress.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.drills.clients import TOPIC, DrillClients
from tests.drills.inline import INLINE_DRILLS, INLINE_SETTINGS, LOW_LATENCY
from tests.drills.operator import Findings, doctor, moved, readiness, warnings, worse
from tests.drills.recovery import PATIENCE_SECONDS, begin_clients, seconds_to_recover, summed_metrics
from tests.drills.scripts import DRILLS, Act, Look
from tests.torture.cluster import TortureCluster

LINES_MAX = 400
"""Log lines of three agents in a drill of a minute."""
SETTINGS: dict[str, object] = {
    "broker.session.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "linger.ms": 100,
    "log.level": "info",
    "compaction.interval.ms": 60_000,
    "compaction.min.age.ms": 60_000,
    "compaction.max.age.ms": 600_000,
}
"""Settings as production has them, where the torture run is quicker."""
ZONES = ("a", "a", "b")
SCRIPTS = DRILLS | INLINE_DRILLS
FILLS_DISK = ("disk_full", "inline_disk_full")
"""Drills for which a small disk is mounted."""


async def run_drill(name: str, write: Callable[[str], None], store: str = "s3") -> bool:
    """Write the report; whether everything recovered, each acknowledged record was read once and in order, and what
    the drill expects was seen. `store`: one of the torture run's.
    """
    script = SCRIPTS[name]
    write(f"== {name}: {script.__doc__}")
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        fills_disk, settings = name in FILLS_DISK, SETTINGS
        if name in INLINE_DRILLS:
            settings = SETTINGS | LOW_LATENCY | INLINE_SETTINGS.get(name, {})
        async with TortureCluster(
            Path(place), 1, fills_disk=fills_disk, settings=settings, zones=ZONES, store=store
        ) as cluster:
            return await _Run(cluster, Path(place), write).drill(name)


class _Run:
    def __init__(self, cluster: TortureCluster, directory: Path, write: Callable[[str], None]) -> None:
        self._cluster, self._directory, self._write = cluster, directory, write
        self._clients = DrillClients(cluster.bootstrap)
        self._before: Findings = {}
        self._missed: list[str] = []
        """What was expected and not seen."""

    async def drill(self, name: str) -> bool:
        await asyncio.to_thread(begin_clients, self._cluster, self._clients, [TOPIC])
        self._before = await doctor(self._doctor_settings())
        metrics, logs = await summed_metrics(self._cluster), self._log_sizes()
        self._clients.begin()
        self._began = time.monotonic()
        await SCRIPTS[name](Act(self._cluster, self._say, self._look, self._expect, self._clients, self._directory))
        recovered = await self._recover()
        await asyncio.to_thread(self._clients.stop)
        for line in self._clients.lines():
            self._write(f"  client   {line}")
        for line in moved(metrics, await summed_metrics(self._cluster)) or ["nothing that counts failures moved"]:
            self._write(f"  metrics  {line}")
        for line in warnings(self._new_logs(logs)) or ["no warnings"]:
            self._write(f"  logs     {line}")
        new, lines = self._new_logs(logs), self._new_logs(logs).count("\n")
        self._expect("the agents wrote few log lines", lines <= LINES_MAX)
        self._write(f"  logs     {lines} lines of three agents, {new.count(' INFO ')} of level info")
        for missed in self._missed:
            self._write(f"  MISSED   {missed}")
        return recovered and self._clients.are_sound and not self._missed

    async def _look(self, module: Sequence[str]) -> Look:
        """Readiness and doctor at this moment."""
        not_ready = await readiness(self._cluster.agents)
        for line in not_ready or ["all agents are ready"]:
            self._say(f"/readyz: {line}")
        found = worse(self._before, await doctor(self._doctor_settings(), module or ("headrace.cli.main",)))
        for line in found or ["nothing new"]:
            self._say(f"doctor: {line}")
        return Look(not_ready, found, await summed_metrics(self._cluster))

    def _expect(self, what: str, is_so: bool) -> None:
        """Note it, and make the drill fail, unless it is so."""
        if not is_so:
            self._missed.append(what)
            self._say(f"MISSED: {what}")

    async def _recover(self) -> bool:
        seconds = await seconds_to_recover(self._cluster, self._clients)
        if seconds is None:
            self._say(f"NOT RECOVERED {PATIENCE_SECONDS:.0f} s after the end of the outage")
            return False
        self._say(f"recovered without hands, {seconds:.1f} s after the end of the outage")
        return True

    def _doctor_settings(self) -> dict[str, object]:
        return self._cluster.operator_settings

    def _log_sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self._directory.glob("agent-*.log")}

    def _new_logs(self, sizes: dict[Path, int]) -> str:
        return "\n".join(path.read_text(errors="replace")[size:] for path, size in sizes.items())

    def _say(self, text: str) -> None:
        self._write(f"{time.monotonic() - self._began:6.1f} s {text}")
