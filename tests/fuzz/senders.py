"""Sends frames over many connections at once, and counts what comes back.

Invariant: each connection sends some requests, then its end of the stream, and reads until the agent closes: so no
request is left unanswered unless the agent refuses it, and a request that waits (a Fetch, a JoinGroup) ends.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.fuzz.frames import ATTACKS, RequestSource

WELL_FORMED = 24
"""Requests of one connection, of those that are well formed; they are half of all connections."""
ALTERED = 3
PATIENCE_SECONDS = 20.0
"""Longest wait in seconds for the end of one connection; without it, one that is never closed would stop the run."""


@dataclass
class FuzzCounts:
    """What was sent and what came back."""

    sent: int = 0
    answered: int = 0
    connections: int = 0
    unclosed: int = 0
    """Connections that the agent did not close in time."""
    refused: int = 0
    """Connections that could not be opened."""
    by_kind: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.sent} requests sent, {self.answered} answered, on {self.connections} connections"
            f" ({self.unclosed} not closed in time, {self.refused} refused)"
        )


async def send(address: tuple[str, int], frames: RequestSource, counts: FuzzCounts, most: int) -> None:
    """One connection after another, until `most` requests were sent in total."""
    while counts.sent < most:
        if frames.rng.random() < 0.5:
            data, count = frames.well_formed(WELL_FORMED), WELL_FORMED
            counts.by_kind["well_formed"] += count
        else:
            attacks = frames.rng.choices(ATTACKS, k=ALTERED)
            data, count = b"".join(attack(frames) for attack in attacks), ALTERED
            counts.by_kind.update(attack.__name__ for attack in attacks)
        counts.sent += count
        await _exchange(address, data, counts)


async def _exchange(address: tuple[str, int], data: bytes, counts: FuzzCounts) -> None:
    try:
        reader, writer = await asyncio.open_connection(*address)
    except OSError:
        counts.refused += 1
        await asyncio.sleep(0.1)
        return
    counts.connections += 1
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(data)
            writer.write_eof()
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
                counts.answered += 1
    except TimeoutError:
        counts.unclosed += 1
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        with suppress(OSError):
            writer.transport.abort()
