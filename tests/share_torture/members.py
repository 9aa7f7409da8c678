"""Members of the share group as processes, and what all of them said.

Place: under run.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.share_torture import MEMBER
from tests.tools import JAVA_LIBRARIES

RELEASED = 97
"""Members release a record once if its value is divisible by this."""


PAUSE_SECONDS = (1.0, 9.0)
LOCK_MS = 5_000
"""Lock duration of the group's records."""


class Got(NamedTuple):
    """A delivery: its number, a time before the record was acquired, and when the member got it."""

    attempt: int
    since_ms: int
    at_ms: int


class Acceptance(NamedTuple):
    """An acceptance that was answered, and when."""

    got: Got
    answered_ms: int

    @property
    def is_timely(self) -> bool:
        """Return whether the answer came before the end of the lock."""
        return self.answered_ms < self.got.since_ms + LOCK_MS


class Heard:
    """What the members said, by value."""

    def __init__(self) -> None:
        self.got: Counter[int] = Counter()
        """Deliveries."""
        self.attempts: Counter[int] = Counter()
        """The highest number of an attempt."""
        self.accepted: dict[int, list[Acceptance]] = {}
        """Acceptances that were answered."""
        self.unsure: Counter[int] = Counter()
        self.troubles: Counter[str] = Counter()

    @property
    def again(self) -> int:
        """Return how many acceptances of records were answered that had an answered acceptance."""
        return sum(len(each) - 1 for each in self.accepted.values())

    def delivered_after_acceptance(self) -> dict[int, list[Acceptance]]:
        """Return the values that a member got and accepted after another one had heard that it had accepted them.

        X12 forbids that. Two acceptances alone are no offence: one that comes after the end of its lock is answered
        without an error once the group's start offset is behind the record, as on Kafka. A stalled member may even get
        a record from its client after that, which its client fetched before.
        """
        return {
            value: each
            for value, each in self.accepted.items()
            if any(
                one.got.at_ms > other.answered_ms and one.got.attempt >= other.got.attempt and one.is_timely
                for one in each
                for other in each
            )
        }

    def hear(self, line: str, has: dict[int, Got]) -> None:
        """Take one line of a member. `has`: the deliveries of which it said nothing more, by value."""
        what, _, rest = line.partition(" ")
        if what == "got":
            value, *got = map(int, rest.split())
            has[value] = Got(*got)
            self.got[value] += 1
            self.attempts[value] = max(self.attempts[value], has[value].attempt)
        elif what == "accepted":
            value, now_ms = map(int, rest.split())
            self.accepted.setdefault(value, []).append(Acceptance(has.pop(value), now_ms))
        elif what == "unsure":
            has.pop(int(rest), None)
            self.unsure[int(rest)] += 1
        elif what == "trouble":
            self.troubles[rest.partition(":")[0]] += 1


class ShareMembers:
    """Keeps so many processes at a time. Use it with `async with`: they are killed at the end."""

    def __init__(self, count: int, directory: Path, rng: random.Random, heard: Heard) -> None:
        self._count, self._directory, self._rng, self._heard = count, directory, rng, heard
        self._running: list[asyncio.subprocess.Process] = []
        self._listening: list[asyncio.Task[None]] = []
        self.started = 0

    async def __aenter__(self) -> ShareMembers:
        classes = self._directory / "classes"
        command = ["javac", "-d", str(classes), "-cp", f"{JAVA_LIBRARIES}/*", str(MEMBER)]
        await asyncio.to_thread(subprocess.run, command, check=True)
        flags = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        self._command = ["java", *flags, "-cp", f"{classes}:{JAVA_LIBRARIES}/*", MEMBER.stem]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._running:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*self._listening)

    async def start(self, bootstrap: str, group: str, topic: str) -> None:
        """Start as many as are missing."""
        while len(self._running) < self._count:
            self.started += 1
            with (self._directory / f"member-{self.started}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *self._command, bootstrap, group, topic, str(RELEASED),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                )  # fmt: skip
            self._running.append(process)
            self._listening.append(asyncio.create_task(self._listen(process)))

    def strike(self) -> str:
        """Kill one, stop one in good order, or pause one, perhaps for longer than a lock. Return which."""
        at, kind = self._rng.randrange(len(self._running)), self._rng.choice(("kill", "stop", "pause"))
        process = self._running[at] if kind == "pause" else self._running.pop(at)
        if kind == "pause":
            process.send_signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(self._rng.uniform(*PAUSE_SECONDS), self._resume, process)
        elif kind == "kill":
            process.kill()
        else:
            assert process.stdin is not None
            process.stdin.close()
        return f"{kind} member"

    def _resume(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)

    @property
    def ended(self) -> list[int]:
        """Return the exit statuses of those that ended by themselves."""
        return [process.returncode for process in self._running if process.returncode is not None]

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        has: dict[int, Got] = {}
        async for line in process.stdout:
            self._heard.hear(line.decode().rstrip(), has)
        if await process.wait():  # it was killed: it may have accepted these, and heard nothing or said nothing
            self._heard.unsure.update(has.keys())
