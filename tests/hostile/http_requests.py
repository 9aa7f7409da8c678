"""Requests to the HTTP port of the attacked agent, and how long a health probe takes meanwhile."""

from __future__ import annotations

import asyncio
import time

from tests.hostile.attacked_agent import AttackedAgent

PROBE_SECONDS = 5.0


async def get(address: tuple[str, int], path: str, host: str = "localhost") -> bytes:
    """Head and body of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


async def metric(target: AttackedAgent, name: str) -> float:
    """Return a sample of /metrics; 0 if it is not there."""
    lines = (await get(target.http, "/metrics")).decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)


async def probe(address: tuple[str, int]) -> float | None:
    """Return how long /healthz takes; None if it is not answered."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            answer = await get(address, "/healthz")
    except (OSError, TimeoutError):
        return None
    return time.monotonic() - began if b" 200 " in answer[:20] else None


async def probes(address: tuple[str, int], count: int, pause_seconds: float = 0.5) -> list[float | None]:
    """One after another."""
    found = []
    for _ in range(count):
        found.append(await probe(address))
        await asyncio.sleep(pause_seconds)
    return found
