"""1,500 silent connections of one address to a port with TLS, each opened again once it is closed; others connect."""

from __future__ import annotations

import asyncio
import contextlib

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.second_listener import SecondListener, waits

CONNECTIONS, TRIES = 1_500, 20
_LISTENER = SecondListener("SSL")
SETTINGS = _LISTENER.settings


async def prepare(target: AttackedAgent) -> None:
    """An idle agent grows for some seconds after its start."""
    await asyncio.sleep(10)


async def attack(target: AttackedAgent) -> str:
    """Another client tries to connect twice a second."""
    opened = 0

    async def keep() -> None:
        nonlocal opened
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await _LISTENER.silent()
                opened += 1
                await reader.read()
                writer.close()
            await asyncio.sleep(0.5)

    keepers = [asyncio.create_task(keep()) for _ in range(CONNECTIONS)]
    await asyncio.sleep(3)
    found = []
    for _ in range(TRIES):
        found.append(await _LISTENER.ask_anew())
        await asyncio.sleep(0.5)
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
    return f"{opened} connections; {waits(found)}"
