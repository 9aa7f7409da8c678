"""Readers of many speeds share the memory for replies: slow ones stop no other, and honest ones are not closed.

Place: the real memory, shares and speeds (agent/listener/memory.py); a clock moves the readers.
A crew of connections asks for 50 MiB each and reads nothing, a byte, or a little, again and again; with it there are a
quick reader, one on a line of 0.1 MB/s, and a client that asks for Metadata. Planted bugs are caught.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.agent.listener import memory as reply_memory
from headrace.agent.listener.memory import SMALL_BYTES, ConnectionReplies, ReadingSpeed, ReplyMemory
from tests.patch import Patch
from tests.planted import PlantedBugs, Trial

MIB = 1024 * 1024
TOTAL, ASKED = 64 * MIB, 50 * MIB
STEP_SECONDS, SECONDS = 0.25, 50.0
WAIT_SECONDS_MAX = 12.0
"""Longest time that a client waits for its turn: a connection that reads nothing is closed after six."""
SLOW_BYTES_PER_SECOND = 100_000
QUICK_BYTES_PER_SECOND = 100 * MIB
CREW_SPEEDS = (0, 1, 1_000, 10_000, 70_000, 500_000)


@dataclass
class Reader:
    """One client: it asks again when it has read its answer, and connects again when it was closed."""

    memory: ReplyMemory
    principal: str
    address: str
    speed: float
    first_bytes: int
    asked_bytes: int = ASKED
    read_bytes: int = 0
    closed: int = 0
    longest_wait: float = 0.0
    largest: int = 0
    _left: float = 0.0
    _size: int = 0
    _began_at: float = 0.0
    _asked_at: float = 0.0
    _asking: asyncio.Task[tuple[int, int]] | None = None
    _connection: ConnectionReplies = field(init=False)

    def __post_init__(self) -> None:
        self._connect()

    def _connect(self) -> None:
        self._connection = ConnectionReplies(self.memory)
        self._connection.client = self.principal, self.address, str(id(self._connection))

    @property
    def held(self) -> int:
        """Bytes of the answer that were not read."""
        return int(self._left)

    def step(self, now: float) -> None:
        """Read for one step, ask for more, or wait."""
        if self._left:
            self._read(now)
        if self._left:
            return
        if self._asking is None:
            self._asked_at = now
            self._asking = asyncio.create_task(self._connection.reserve(self.asked_bytes, self.first_bytes))
        elif self._asking.done():
            reserved, granted = self._asking.result()
            self._asking = None
            if not self.asked_bytes:
                return
            self._size = max(granted, self.first_bytes)
            self.largest = max(self.largest, self._size)
            if self._size > reserved:
                self._connection.charge(self._size - reserved)
            else:
                self._connection.release(reserved - self._size)
            self._left, self._began_at = self._size, now
            self._connection.speed.begin(now)
        if self._asking is not None:
            self.longest_wait = max(self.longest_wait, now - self._asked_at)

    def _read(self, now: float) -> None:
        before = self.held
        self._left = max(0.0, self._left - self.speed * STEP_SECONDS)
        self.read_bytes += before - self.held
        if self.held < before:
            self._connection.release(before - self.held)
        if not self.held:
            self._left = 0.0
            self._connection.speed.read(self._size, now - self._began_at)

    def judge(self, now: float) -> None:
        """Others wait: close the connection if it is too slow, as agent/listener/connection.py does."""
        if self.held > SMALL_BYTES and self._connection.speed.is_too_slow(now, self.read_bytes):
            self._connection.release(self.held)
            self._left = 0.0
            self.closed += 1
            self._connect()


class Story:
    """A crew and three honest clients, at 64 MiB of memory."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.memory = ReplyMemory(TOTAL)
        speeds = rng.sample(CREW_SPEEDS, rng.randrange(1, 4))
        balancer = rng.random() < 0.5
        logins = rng.random() < 0.5
        sizes = (2, 5, 20, 60) if balancer and not logins else (2, 5, 20, 60, 250)
        crew = rng.choice(sizes)  # of connections that nothing tells apart, each one has its turn
        address, crew_address = "10.0.0.1", "10.0.0.1" if balancer else "10.6.6.6"
        honest, hostile = ("User:app", "User:other") if logins else ("", "")
        batch = rng.choice((20_000, 500_000, MIB))
        self.crew = [Reader(self.memory, hostile, crew_address, rng.choice(speeds), batch) for _ in range(crew)]
        self.quick = Reader(self.memory, honest, address, QUICK_BYTES_PER_SECOND, 200_000)
        self.slow = Reader(self.memory, honest, address, SLOW_BYTES_PER_SECOND, 200_000)
        self.metadata = Reader(self.memory, honest, address, QUICK_BYTES_PER_SECOND, 0, 0)
        self.told = f"seed={seed} crew={crew} speeds={speeds} balancer={balancer} logins={logins} batch={batch}"

    async def run(self) -> None:
        """AssertionError if an honest client is not served, or memory is used that is not there."""
        everyone = [*self.crew, self.quick, self.slow, self.metadata]
        now, most = 0.0, 0
        while now < SECONDS:
            for reader in everyone:
                reader.step(now)
            for _ in range(3):
                await asyncio.sleep(0)
            most = max(most, self.memory.in_use_bytes)
            if now == int(now) and self.memory.waiting:
                for reader in everyone:
                    reader.judge(now)
            now += STEP_SECONDS
        for reader in everyone:
            if reader._asking is not None:
                reader._asking.cancel()
        await asyncio.sleep(0)
        assert most <= TOTAL, f"{most:,} bytes in use: {self.told}"
        metadata_wait = self.metadata.longest_wait
        assert metadata_wait <= 2 * STEP_SECONDS, f"Metadata waits {metadata_wait}: {self.told}"
        waits = {"quick": self.quick.longest_wait, "slow": self.slow.longest_wait}
        assert max(waits.values()) <= WAIT_SECONDS_MAX, f"waits {waits}: {self.told}"
        assert self.quick.closed + self.slow.closed == 0, f"honest clients are closed: {self.told}"
        assert self.slow.largest <= SLOW_BYTES_PER_SECOND * 12, f"{self.slow.largest:,} for a slow client: {self.told}"


@pytest.mark.parametrize("seed", range(12))
def test_slow_readers_stop_no_other(seed: int) -> None:
    asyncio.run(Story(seed).run())


def test_without_rivals_any_speed_is_served() -> None:
    """The slowest client keeps its answer while no other waits, and gets small ones once it is known."""

    async def read() -> Reader:
        reader = Reader(ReplyMemory(TOTAL), "", "10.0.0.1", 20_000, 50_000)
        for step in range(int(200 / STEP_SECONDS)):
            reader.step(step * STEP_SECONDS)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return reader

    reader = asyncio.run(read())
    assert reader.read_bytes > 0.9 * 200 * 20_000
    assert reader.closed == 0


def test_a_quick_reader_soon_gets_large_answers() -> None:
    async def read() -> int:
        reader = Reader(ReplyMemory(TOTAL), "User:app", "10.0.0.1", QUICK_BYTES_PER_SECOND, 500_000)
        for step in range(20):
            reader.step(step * STEP_SECONDS)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return reader.largest

    assert asyncio.run(read()) >= 16 * MIB


# -- planted bugs


def a_byte_buys_time(patch: Patch) -> None:
    right = ReadingSpeed.is_too_slow

    def is_too_slow(self: ReadingSpeed, now: float, taken_bytes: int) -> bool:
        if self._taken_bytes is not None and taken_bytes > self._taken_bytes:
            self.begin(now)
        return right(self, now, taken_bytes)

    patch.replace(ReadingSpeed, "is_too_slow", is_too_slow)


def metadata_waits_behind_records(patch: Patch) -> None:
    right = ConnectionReplies._wait

    async def wait(self: ConnectionReplies, size: int, *, is_large: bool) -> None:
        await right(self, size, is_large=True)

    patch.replace(ConnectionReplies, "_wait", wait)


def slow_readers_get_large_answers(patch: Patch) -> None:
    right = ReadingSpeed.__init__

    def init(self: ReadingSpeed) -> None:
        right(self)
        self.most_bytes = ASKED

    patch.replace(ReadingSpeed, "__init__", init)
    patch.replace(ReadingSpeed, "read", lambda self, size_bytes, seconds: None)


def a_share_is_all_there_is(patch: Patch) -> None:
    slow_readers_get_large_answers(patch)
    patch.replace(ReplyMemory, "room_of", lambda self, client: ASKED)
    patch.replace(ReadingSpeed, "is_too_slow", lambda self, now, taken_bytes: False)


def all_wait_in_one_row(patch: Patch) -> None:
    right = reply_memory.MemoryBudget.reserve

    def reserve(self: object, size: int, granted: object, client: object = (), of: int | None = None) -> bool:
        return right(self, size, granted, (), of)  # type: ignore[arg-type]

    patch.replace(reply_memory.MemoryBudget, "reserve", reserve)


def a_first_batch_is_not_counted(patch: Patch) -> None:
    right = ConnectionReplies.reserve

    async def reserve(self: ConnectionReplies, size: int, first: int | None = None) -> tuple[int, int]:
        return await right(self, min(size, 1), 0)

    patch.replace(ConnectionReplies, "reserve", reserve)


BUGS = (
    a_byte_buys_time,
    metadata_waits_behind_records,
    slow_readers_get_large_answers,
    a_share_is_all_there_is,
    all_wait_in_one_row,
    a_first_batch_is_not_counted,
)
PLANTED = PlantedBugs("slow readers", most=100)


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None],
    trial: Trial,
) -> None:
    bug(trial.patch)
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            asyncio.run(Story(seed).run())
