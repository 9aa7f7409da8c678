"""The copiers' processes: supervised, killed, paused and replaced while they are paused; and what they reported.

Place: under tests/transactional_copy/run.py. Each copier is a transactional id with one process at a time, but for a
*zombie*: it is stopped (SIGSTOP), its successor starts, and then it continues.
Invariant: a process that ends is replaced under the same transactional id and the next incarnation, until `stop`.
Lines are kept as they were said; what a killed process had said counts.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tools import JAVA_LIBRARIES
from tests.torture.checker import Name
from tests.transactional_copy.copier import OVER
from tests.transactional_copy.verdict import CopyTransaction, KnownOutcome

COPIER_FAULTS = ("kill copier", "pause copier", "zombie")
GAP_MEAN_S = 4.0
RESTART_SECONDS = 0.5
"""Before a process that ended is replaced."""
STOP_SECONDS = 300.0
"""What the copiers get to end what they are doing."""


class CopierFault(NamedTuple):
    """`seconds`: of a pause; a zombie continues that long after its successor was started."""

    at_s: float
    kind: str
    copier: int
    seconds: float


def copier_schedule(seed: int, seconds: float, copiers: int) -> list[CopierFault]:
    """Return the copier schedule in order of time, a function of its arguments; the last one is over before
    `seconds` are.
    """
    rng = random.Random(f"copiers {seed}")
    faults, at_s = [], rng.expovariate(1 / GAP_MEAN_S)
    free_at = dict.fromkeys(range(copiers), 0.0)
    while at_s < seconds - 1.0:
        copier, kind = rng.randrange(copiers), rng.choice(COPIER_FAULTS)
        length_s = 0.0 if kind == "kill copier" else min(rng.uniform(1.0, 7.0), seconds - at_s)
        if free_at[copier] <= at_s:
            faults.append(CopierFault(round(at_s, 3), kind, copier, round(length_s, 3)))
            free_at[copier] = at_s + length_s + 2.0
        at_s += rng.expovariate(1 / GAP_MEAN_S)
    return faults


class CopierReport:
    """What one transactional id's processes said. `transactions` by tag; `over` counts reasons to start again,
    `again` calls that were repeated."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.transactions: dict[str, CopyTransaction] = {}
        self.over: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.trouble = ""

    def hear(self, line: str) -> None:
        """Take one line. An abort that follows the attempt to commit says nothing about that attempt."""
        match line.split(maxsplit=2):
            case ["begin", tag, records]:
                places = (record.split(":") for record in records.split(","))
                names = frozenset(Name(tag, int(partition), int(number)) for partition, number in places)
                self.transactions[tag] = CopyTransaction(names, KnownOutcome.NEVER)
            case ["ending", tag]:
                self.transactions[tag] = self.transactions[tag]._replace(outcome=KnownOutcome.ATTEMPTED)
            case ["committed", tag]:
                self.transactions[tag] = self.transactions[tag]._replace(outcome=KnownOutcome.COMMITTED)
            case ["aborted", _]:
                pass
            case ["over", *reason]:
                self.over[" ".join(reason)] += 1
            case ["again", call, error]:
                self.again[f"{call}: {error}"] += 1
            case _:
                self.trouble = f"unexpected line: {line!r}"

    def count(self, outcome: KnownOutcome) -> int:
        """Transactions with this outcome."""
        return sum(each.outcome is outcome for each in self.transactions.values())


class SupervisedCopier:
    """One transactional id. `command`: runs a process, without its arguments."""

    def __init__(self, command: Sequence[str], name: str, bootstrap: str, group: str, seed: int, log: Path) -> None:
        self.report = CopierReport(name)
        self.incarnation = 0
        self._command = command
        self._arguments = (bootstrap, group, name)
        self._seed = seed
        self._log = log
        self._is_stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._zombies: list[asyncio.subprocess.Process] = []
        self._watching: list[asyncio.Task[None]] = []
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the processes; until `stop`, one that ends by itself or is killed gets a successor."""
        async with self._turn:
            await self._start()

    async def strike(self, fault: CopierFault) -> None:
        """Return when it is over."""
        async with self._turn:
            process = self._process
            if process is None or process.returncode is not None:
                return
            if fault.kind == "kill copier":
                process.kill()
                return
            process.send_signal(signal.SIGSTOP)
            if fault.kind == "zombie":
                self._zombies.append(process)
                await self._start()
        await asyncio.sleep(fault.seconds)
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Each process ends its transaction, or is killed after a while, which is `trouble`."""
        self._is_stopping = True
        async with self._turn:
            processes = [*self._zombies, *([self._process] if self._process else [])]
        for process in processes:
            if process.returncode is None:
                assert process.stdin is not None
                process.send_signal(signal.SIGCONT)
                process.stdin.close()
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.send_signal(signal.SIGUSR1)
                await asyncio.sleep(1.0)
                process.kill()
                self.report.trouble = f"no end after {STOP_SECONDS:.0f} s: {self._end_of_log()}"
        await asyncio.gather(*self._watching)

    async def kill(self) -> None:
        """Kill what still runs, if the run itself failed."""
        self._is_stopping = True
        for process in (*self._zombies, self._process):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    async def _start(self) -> None:
        self.incarnation += 1
        arguments = (*self._arguments, str(self.incarnation), str(self._seed))
        with self._log.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command, *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._watching.append(asyncio.create_task(self._watch(process)))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Hear it to its end, and start its successor if it has none."""
        assert process.stdout is not None
        async for line in process.stdout:
            self.report.hear(line.decode().strip())
        self._note(await process.wait())
        if process is self._process and not self._is_stopping:
            await asyncio.sleep(RESTART_SECONDS)
            async with self._turn:
                if process is self._process and not self._is_stopping:
                    await self._start()

    def _note(self, status: int) -> None:
        if status not in (OVER, -signal.SIGKILL) and not (status == 0 and self._is_stopping):
            self.report.trouble = f"incarnation {self.incarnation} ended with status {status}: {self._end_of_log()}"

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-1_000:]


def copier_commands(classes: Path | None) -> Mapping[str, list[str]]:
    """Transactional id -> the command of its copier; `classes` of Java's, None to leave it out."""
    python = [sys.executable, "-m", "tests.transactional_copy.copier"]
    found = {"librdkafka-1": python, "librdkafka-2": python}
    if classes is not None:
        flags = ["-Xmx128m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        found["java"] = ["java", *flags, "-cp", f"{classes}:{JAVA_LIBRARIES}/*", "TransactionalCopier"]
    return found
