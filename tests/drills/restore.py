"""A backup is restored: records before it are there, agents follow by themselves after one command.

Place: run by `python -m tests.drills.operator_week`; the other drills lose no rows (scripts.py).
Invariant: the clients have stopped before the backup, so that everything acknowledged must be there afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from confluent_kafka import Consumer

from headrace.metastore.postgres.installation import find_installation
from load.agent_child import flags
from tests.drills.clients import TOPIC, DrillClients
from tests.drills.operator import doctor
from tests.drills.recovery import begin_clients
from tests.drills.run import SETTINGS, ZONES
from tests.torture.cluster import TortureCluster
from tests.torture.servers import CREDENTIALS

PATIENCE_SECONDS = 120.0
AFTER_SECONDS = 5.0
PROGRAMS = find_installation().bin_dir
"""pg_dump and pg_restore of the server's version."""


async def restore_drill(write: Callable[[str], None]) -> bool:
    """Write the report; whether everything acknowledged before the backup is there."""
    write("== restored: The database is lost, and a dump is restored")
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        async with TortureCluster(Path(place), 1, settings=SETTINGS, zones=ZONES) as cluster:
            return await _Restore(cluster, Path(place), write).drill()


class _Restore:
    def __init__(self, cluster: TortureCluster, directory: Path, write: Callable[[str], None]) -> None:
        self._cluster, self._file, self._write = cluster, directory / "headrace.dump", write
        self._began = time.monotonic()

    async def drill(self) -> bool:
        cluster, clients = self._cluster, DrillClients(self._cluster.bootstrap)
        await asyncio.to_thread(begin_clients, cluster, clients, [TOPIC])
        await asyncio.sleep(AFTER_SECONDS)
        await asyncio.to_thread(clients.stop)
        before = await doctor(cluster.operator_settings)
        self._say(f"doctor: {' '.join(before[('postgres', 'backup')])}")
        self._say(await self._headrace("backup", "--to", str(self._file), **cluster.operator_settings))
        after = await doctor(cluster.operator_settings)
        self._say(f"doctor: {' '.join(after[('postgres', 'backup')])}")
        await asyncio.gather(*(agent.stop() for agent in cluster.agents.values()))
        self._say("all agents were stopped; the database is replaced")
        await asyncio.to_thread(self._replace)
        self._say(f"pg_restore: {self._file.stat().st_size / 1024:,.0f} KiB")
        told = await self._headrace("migrate", "--restored", **cluster.operator_settings)
        self._say(f"headrace migrate --restored: {told.splitlines()[-2]}")
        await asyncio.gather(*(agent.start() for agent in cluster.agents.values()))
        read = await asyncio.to_thread(self._read, len(clients.acknowledged))
        missing = set(clients.acknowledged) - set(read)
        self._say(f"agents are ready; {len(clients.acknowledged)} acknowledged, {len(missing)} of them missing")
        resumed = await self._headrace("audit", "--resume-janitor", "--json", **cluster.operator_settings)
        self._say(f"headrace audit --resume-janitor: {sorted(json.loads(resumed))[:4]} ...")
        levels = before[("postgres", "backup")][0], after[("postgres", "backup")][0]
        return not missing and levels == ("warn", "ok")

    def _replace(self) -> None:
        server = self._cluster.drills.url
        name = psycopg.conninfo.conninfo_to_dict(server)["dbname"]
        other = psycopg.conninfo.make_conninfo(server, dbname="template1")
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        command = [str(PROGRAMS / "pg_restore"), "--no-owner", "--dbname", server, str(self._file)]
        subprocess.run(command, check=True)

    def _read(self, count: int) -> list[int]:
        consumer = Consumer(
            {"bootstrap.servers": self._cluster.bootstrap, "group.id": "after", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        found: list[int] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(int(message.value() or b"-1"))
        consumer.close()
        return found

    async def _headrace(self, *words: str, **settings: object) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", *words, *flags(settings),
            env=os.environ | CREDENTIALS | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, errors = await process.communicate()
        if process.returncode not in (0, 1) or not printed:
            raise RuntimeError(f"{' '.join(words)}: {errors.decode()[-500:]}")
        return printed.decode().strip()

    def _say(self, text: str) -> None:
        self._write(f"{time.monotonic() - self._began:6.1f} s {text}")
