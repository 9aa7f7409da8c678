"""Every text and byte field of every API grown to 1 MB, 200 times with another value: what does the agent keep?

Printed: how far resident memory grew, and how much of that headrace_memory_bytes says. It compares the agent after all
requests with the agent after the first one of each field. About 10 minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.grown_requests import GrownField, grown_fields
from tests.hostile.metrics_page import memory_in_use, read_page
from tests.hostile.typed_frames import Asking

MIB = 1024 * 1024
FIELD_BYTES = 1_000_000
TIMES = 200
APART_MAX_BYTES = 64 * MIB
_WAITING_SECONDS = 5.0
"""Seconds to wait for a request that is answered later: a JoinGroup, a Fetch."""


@dataclass
class Growth:
    """Growth of memory between two moments: of the process, and of what it counts."""

    resident_bytes: int
    counted_bytes: float
    answered: int = 0
    closed: int = 0

    @property
    def apart_bytes(self) -> float:
        """What the process has and does not count."""
        return self.resident_bytes - max(self.counted_bytes, 0.0)

    def __str__(self) -> str:
        return (
            f"{self.answered} requests answered, {self.closed} closed; resident {self.resident_bytes / MIB:+.1f} MiB,"
            f" counted {self.counted_bytes / MIB:+.1f} MiB, apart {self.apart_bytes / MIB:.1f} MiB"
        )


async def send_grown(
    address: tuple[str, int], each: Sequence[GrownField], numbers: range, size: int
) -> tuple[int, int]:
    """Requests answered, and those after which the connection was closed."""
    answered = 0
    async with Asking(*address) as connection:
        for number in numbers:
            for field in each:
                answered += bool(await connection.ask(field.frame(number, size), _WAITING_SECONDS))
        return answered, connection.closed


async def attack(target: AttackedAgent) -> str:
    """One connection."""
    http = "{}:{}".format(*target.http)

    async def look() -> tuple[int, float]:
        page = await asyncio.to_thread(read_page, http)
        return target.resident_bytes(), sum(memory_in_use(page).values())

    each = grown_fields()
    await send_grown(target.kafka, each, range(1), FIELD_BYTES)
    before = await look()
    answered, closed = await send_grown(target.kafka, each, range(1, TIMES + 1), FIELD_BYTES)
    after = await look()
    return f"{len(each)} fields: {Growth(after[0] - before[0], after[1] - before[1], answered, closed)}"
