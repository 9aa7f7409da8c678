"""2,000 connections complete their TLS handshake and say nothing more: their memory, and what the metric says."""

from __future__ import annotations

import asyncio

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.http_requests import metric
from tests.hostile.second_listener import ATTACKER, SecondListener

WARM, CONNECTIONS = 100, 2_000
_LISTENER = SecondListener("SSL")
SETTINGS = _LISTENER.settings
KIB = 1024


async def prepare(target: AttackedAgent) -> None:
    """The first connections load code; an idle agent grows for some seconds after its start."""
    opened = [await _LISTENER.connect() for _ in range(WARM)]
    await asyncio.sleep(10)
    for _, writer in opened:
        writer.close()


async def attack(target: AttackedAgent) -> str:
    """Open them one after another, wait, and compare."""
    name = 'headrace_memory_bytes{part="connections"}'
    before, counted = target.resident_bytes(), await metric(target, name)
    opened = [await _LISTENER.connect(ATTACKER) for _ in range(CONNECTIONS)]
    await asyncio.sleep(3)
    grown = (target.resident_bytes() - before) / CONNECTIONS / KIB
    shown = (await metric(target, name) - counted) / CONNECTIONS / KIB
    for _, writer in opened:
        writer.transport.abort()
    return f"{grown:.0f} KiB for each of {CONNECTIONS} connections, {shown:.0f} KiB in the metric"
