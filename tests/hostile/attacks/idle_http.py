"""1,500 idle HTTP connections, and 2,000 that send a request byte by byte; then Kafka clients connect."""

from __future__ import annotations

import asyncio
import resource

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import ask, request

IDLE, SLOW = 1_500, 2_000
_DRIP_SECONDS = 6.0


async def attack(target: AttackedAgent) -> str:
    """Open them all, drip for some seconds, then ask for metadata and health."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    writers = []
    for _ in range(IDLE + SLOW):
        try:
            async with asyncio.timeout(5):
                writers.append((await asyncio.open_connection(*target.http))[1])
        except (OSError, TimeoutError):
            break
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 100
    for position in range(len(head) // 4):
        for writer in writers[IDLE:]:
            if not writer.is_closing():
                writer.write(head[position : position + 1])
        await asyncio.sleep(_DRIP_SECONDS / (len(head) // 4))
    descriptors = target.descriptors()
    kafka = await ask(*target.kafka, request(3, 1, b"\0\0\0\0"), 10.0)
    health = await _healthy(target)
    for writer in writers:
        writer.close()
    traces = target.log.read_text(errors="replace").count("Traceback")
    return f"{descriptors} descriptors, kafka {'ok' if kafka else 'NOT served'}, health {health}, {traces} tracebacks"


async def _healthy(target: AttackedAgent) -> str:
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*target.http)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
            return "ok" if b" 200 " in status else f"NOT ok: {status!r}"
    except (OSError, TimeoutError) as error:
        return f"NOT ok: {error!r}"
