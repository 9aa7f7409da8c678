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
import uuid
from collections.abc import Callable, Mapping
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

SILENT_SECONDS = 20.0
"""After so long without a record, a topic has no more."""
AFTER_SECONDS = 5.0
PROGRAMS = find_installation().bin_dir
"""pg_dump and pg_restore of the server's version."""


async def restore_drill(write: Callable[[str], None], store: str = "s3") -> bool:
    """Write the report; whether everything acknowledged before the backup is there. `store` as run_drill."""
    write("== restored: The database is lost, and a dump is restored")
    return await _restored(write, SETTINGS, store, has_inline=False)


async def inline_restore_drill(write: Callable[[str], None]) -> bool:
    """Write the report of the same, with low.latency.enable for all topics; whether the dump had their small files."""
    write("== restored_inline: The same, with small files that are in the database only")
    return await _restored(write, SETTINGS | {"low.latency.enable": True}, "s3", has_inline=True)


async def _restored(
    write: Callable[[str], None], settings: Mapping[str, object], store: str, *, has_inline: bool
) -> bool:
    with tempfile.TemporaryDirectory(prefix="headrace-drill-") as place:
        os.chmod(place, 0o711)  # for Postgres, which does not run as root
        async with TortureCluster(Path(place), 1, settings=settings, zones=ZONES, store=store) as cluster:
            return await _Restore(cluster, Path(place), write, has_inline=has_inline).drill()


class OperatorAtWork:
    """Commands on the first agent's machine, and what is in the topic."""

    def __init__(self, cluster: TortureCluster, write: Callable[[str], None]) -> None:
        self.cluster, self._write = cluster, write
        self._began = time.monotonic()

    async def read(self, count: int) -> list[int]:
        """Return what the topic has: so many records, or all that come."""
        return await asyncio.to_thread(_read, self.cluster.bootstrap, count)

    async def headrace(self, *words: str, **settings: object) -> str:
        """Return what a command prints; RuntimeError if it prints nothing, or fails."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", *words, *flags(settings),
            env=os.environ | CREDENTIALS | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, errors = await process.communicate()
        if process.returncode not in (0, 1) or not printed:
            raise RuntimeError(f"{' '.join(words)}: {errors.decode()[-500:]}")
        return printed.decode().strip()

    def say(self, text: str) -> None:
        """Write it, with the time since the beginning."""
        self._write(f"{time.monotonic() - self._began:6.1f} s {text}")


class _Restore(OperatorAtWork):
    def __init__(
        self, cluster: TortureCluster, directory: Path, write: Callable[[str], None], *, has_inline: bool
    ) -> None:
        super().__init__(cluster, write)
        self._file, self._has_inline, self._inline = directory / "headrace.dump", has_inline, 0

    async def drill(self) -> bool:
        cluster, clients = self.cluster, DrillClients(self.cluster.bootstrap)
        await asyncio.to_thread(begin_clients, cluster, clients, [TOPIC])
        await asyncio.sleep(AFTER_SECONDS)
        await asyncio.to_thread(clients.stop)
        self._inline = await asyncio.to_thread(self._held)
        before = await doctor(cluster.operator_settings)
        self.say(f"doctor: {' '.join(before[('postgres', 'backup')])}")
        self.say(await self.headrace("backup", "--to", str(self._file), **cluster.operator_settings))
        after = await doctor(cluster.operator_settings)
        self.say(f"doctor: {' '.join(after[('postgres', 'backup')])}")
        await asyncio.gather(*(agent.stop() for agent in cluster.agents.values()))
        self.say("all agents were stopped; the database is replaced")
        await asyncio.to_thread(self._replace)
        self.say(f"pg_restore: {self._file.stat().st_size / 1024:,.0f} KiB")
        told = await self.headrace("migrate", "--restored", **cluster.operator_settings)
        self.say(f"headrace migrate --restored: {told.splitlines()[-2]}")
        await asyncio.gather(*(agent.start() for agent in cluster.agents.values()))
        read = await self.read(len(clients.acknowledged))
        missing = set(clients.acknowledged) - set(read)
        self.say(f"agents are ready; {len(clients.acknowledged)} acknowledged, {len(missing)} of them missing")
        resumed = await self.headrace("audit", "--resume-janitor", "--json", **cluster.operator_settings)
        self.say(f"headrace audit --resume-janitor: {sorted(json.loads(resumed))[:4]} ...")
        self.say(f"{self._inline} inline files were in the backup")
        levels = before[("postgres", "backup")][0], after[("postgres", "backup")][0]
        return not missing and levels == ("warn", "ok") and self._has_inline == bool(self._inline)

    def _held(self) -> int:
        with psycopg.connect(self.cluster.drills.url) as connection:
            row = connection.execute("SELECT count(DISTINCT file_id) FROM extents WHERE is_inline(file_id)").fetchone()
        assert row is not None
        return int(row[0])

    def _replace(self) -> None:
        server = self.cluster.drills.url
        name = psycopg.conninfo.conninfo_to_dict(server)["dbname"]
        other = psycopg.conninfo.make_conninfo(server, dbname="template1")
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        command = [str(PROGRAMS / "pg_restore"), "--no-owner", "--dbname", server, str(self._file)]
        subprocess.run(command, check=True)


def _read(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []
    silent_since = time.monotonic()
    while len(found) < count and time.monotonic() < silent_since + SILENT_SECONDS:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b"-1"))
            silent_since = time.monotonic()
    consumer.close()
    return found
