"""What another user, or a file, can do on the machine of `headrace dev`: Postgres over TCP, a snapshot, a used port."""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import psycopg
from crc32c import crc32c

from tests.hostile.attacked_agent import AttackedAgent

_HEADER = ">4sHqIII"


def snapshot_bomb(unpacked_bytes: int) -> bytes:
    """A metadata snapshot with a valid checksum that unpacks to so many zeros."""
    packed = zlib.compress(bytes(unpacked_bytes), 9)
    checksum = crc32c(packed, crc32c(struct.pack(_HEADER, b"HRMS", 1, 1, 1, 0, unpacked_bytes)))
    return struct.pack(_HEADER, b"HRMS", 1, 1, 1, checksum, unpacked_bytes) + packed


async def attack(target: AttackedAgent) -> str:
    """One after another."""
    return "; ".join([await asyncio.to_thread(step, target) for step in (_postgres, _snapshot, _used_port)])


def _postgres(target: AttackedAgent) -> str:
    port = target.metastore_url.rpartition("port=")[2]
    try:
        with psycopg.connect(f"postgresql://headrace@127.0.0.1:{port}/postgres", connect_timeout=5) as connection:
            rows = connection.execute("SELECT current_setting('is_superuser')").fetchone()
    except psycopg.OperationalError as error:
        return f"postgres over TCP: {str(error).splitlines()[0][:80]}"
    return f"postgres over TCP: LET IN, superuser={rows}"


def _snapshot(target: AttackedAgent) -> str:
    bomb = target.directory / "bomb"
    bomb.write_bytes(snapshot_bomb(700_000_000))
    _headrace(target, "shell", "--snapshot", "/nowhere", "ls")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = _headrace(target, "shell", "--snapshot", str(bomb), "ls")
    peak = max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before, 0) // 1024
    size = bomb.stat().st_size / 1e6
    return f"a {size:.1f} MB snapshot: {done.stderr.strip()[-120:]!r}, +{peak} MiB above a shell that reads nothing"


def _used_port(target: AttackedAgent) -> str:
    bucket = (target.directory / "data" / "bucket").as_uri()
    port = str(target.kafka[1])
    done = _headrace(
        target, "agent", "--metastore-url", target.metastore_url, "--bucket", bucket, "--listeners",
        f"PLAINTEXT://127.0.0.1:{port}",
        "--http-port", "0",
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"a used port: {len(lines)} line(s), the last {lines[-1][-160:]!r}"


def _headrace(target: AttackedAgent, *words: str) -> subprocess.CompletedProcess[str]:
    checkout = target.checkout
    command = [str(checkout / ".venv/bin/headrace")] if checkout else [sys.executable, "-m", "headrace.cli.main"]
    environment = {k: v for k, v in os.environ.items() if not checkout or k != "PYTHONPATH"}
    if checkout:
        environment["PYTHONPATH"] = f"{checkout}/src:{checkout}"
    place = Path(checkout) if checkout else None
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=place
    )
