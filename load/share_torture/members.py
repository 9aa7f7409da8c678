"""Members of the share group as processes, and what all of them said.

Place: under run.py.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections import Counter
from pathlib import Path

from load.share_torture import MEMBER
from load.tools import JAVA_LIBRARIES

RELEASED = 97
"""Members release a record once if its value is divisible by this."""


class Heard:
    """What the members said, by value."""

    def __init__(self) -> None:
        self.got: Counter[int] = Counter()
        """Deliveries."""
        self.attempts: Counter[int] = Counter()
        """The highest number of an attempt."""
        self.accepted: Counter[int] = Counter()
        """Acceptances that were answered: X12 allows one."""
        self.unsure: Counter[int] = Counter()
        self.troubles: Counter[str] = Counter()

    def hear(self, line: str, has: set[int]) -> None:
        """Take one line of a member. `has`: the values that it got and said nothing more of."""
        what, _, rest = line.partition(" ")
        if what == "got":
            value, attempt = map(int, rest.split())
            has.add(value)
            self.got[value] += 1
            self.attempts[value] = max(self.attempts[value], attempt)
        elif what == "accepted":
            has.discard(int(rest))
            self.accepted[int(rest)] += 1
        elif what == "unsure":
            has.discard(int(rest))
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
        """End one: without a word, or in good order. Return which."""
        process = self._running.pop(self._rng.randrange(len(self._running)))
        if self._rng.random() < 0.5:
            process.kill()
            return "kill member"
        assert process.stdin is not None
        process.stdin.close()
        return "stop member"

    @property
    def ended(self) -> list[int]:
        """Return the exit statuses of those that ended by themselves."""
        return [process.returncode for process in self._running if process.returncode is not None]

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        has: set[int] = set()
        async for line in process.stdout:
            self._heard.hear(line.decode().rstrip(), has)
        if await process.wait():  # it was killed: it may have accepted these, and heard nothing or said nothing
            self._heard.unsure.update(has)
