"""60 connections send frames of 30 MiB (Produce) and 1 MiB (JoinGroup), at 1, 30,000, 100,000, 300,000 or 1,000,000
bytes a second; meanwhile others produce 1 MiB at a time and ask for Metadata, and one sends 1.5 MiB at 0.5 MB/s.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import JOIN_GROUP, METADATA, PRODUCE, header, request, text
from tests.hostile.second_listener import exchange, waits

SPEEDS = (1, 30_000, 100_000, 300_000, 1_000_000)
CONNECTIONS = 60
SECONDS, STEP_SECONDS, PROBE_SECONDS = 25.0, 0.5, 0.25
MIB = 1024 * 1024
SETTINGS = {"buffer.memory.bytes": 96 * MIB}
"""Else what the frames may use would be more than what an attack may use."""
SIZES = {PRODUCE: (7, 30 * MIB), JOIN_GROUP: (1, MIB)}
HONEST_BYTES, HONEST_SPEED = 3 * MIB // 2, 500_000
ORDINARY_BYTES = MIB
_NOT_ONE = b"no batch at all"


def produce(size: int) -> bytes:
    """A Produce request of this size, which the agent reads as a whole and refuses: its batch is none."""
    body = struct.pack(">hhi", -1, 1, 10_000) + struct.pack(">i", 1) + text("slow-writers") + struct.pack(">i", 1)
    data = _NOT_ONE + bytes(size)
    return request(PRODUCE, 7, body + struct.pack(">ii", 0, len(data)) + data)


class SlowWriter:
    """A connection that begins one frame after another, and connects again when it was closed."""

    def __init__(self, target: AttackedAgent, api_key: int, speed: int) -> None:
        self._target, self._api_key, self._speed = target, api_key, speed
        self.closed = 0

    async def run(self) -> None:
        """Attack until it is cancelled."""
        version, size = SIZES[self._api_key]
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*self._target.kafka)
                writer.transport.set_write_buffer_limits(0)
                writer.write(struct.pack(">i", size) + header(self._api_key, version))
                while not writer.is_closing():
                    writer.write(bytes(max(1, int(self._speed * STEP_SECONDS))))
                    await writer.drain()
                    await asyncio.sleep(STEP_SECONDS)
            self.closed += 1


async def _probe(target: AttackedAgent, asked: bytes) -> list[float | None]:
    found: list[float | None] = []
    over = time.monotonic() + SECONDS
    while time.monotonic() < over:
        began = time.monotonic()
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(*target.kafka)
                await exchange(reader, writer, asked)
                writer.close()
        found.append(None if (took := time.monotonic() - began) >= 10 else took)
        await asyncio.sleep(PROBE_SECONDS)
    return found


async def _honest(target: AttackedAgent) -> str:
    """One frame, at half a megabyte a second."""
    data, began = produce(HONEST_BYTES), time.monotonic()
    reader, writer = await asyncio.open_connection(*target.kafka)
    part = int(HONEST_SPEED * STEP_SECONDS)
    try:
        for start in range(0, len(data), part):
            writer.write(data[start : start + part])
            await writer.drain()
            await asyncio.sleep(STEP_SECONDS)
        await reader.readexactly(4)
    except (OSError, EOFError):
        return f"closed after {time.monotonic() - began:.0f} s"
    finally:
        writer.close()
    return f"answered after {time.monotonic() - began:.0f} s"


async def attack(target: AttackedAgent) -> str:
    """All speeds at once, from one address, which is also that of the others."""
    crew = [SlowWriter(target, list(SIZES)[n % 2], SPEEDS[n // 2 % len(SPEEDS)]) for n in range(CONNECTIONS)]
    tasks = [asyncio.create_task(writer.run()) for writer in crew]
    await asyncio.sleep(1)
    try:
        asked = request(METADATA, 1, struct.pack(">i", -1))
        honest, ordinary, metadata = await asyncio.gather(
            _honest(target), _probe(target, produce(ORDINARY_BYTES)), _probe(target, asked)
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    closed = sum(writer.closed for writer in crew)
    return f"{closed} closed; honest slow one {honest}; 1 MiB: {waits(ordinary)}; Metadata: {waits(metadata)}"
