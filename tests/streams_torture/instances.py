"""Instances of the application as processes: each has its own state on disk, which it keeps when it comes again.

Place: under run.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from pathlib import Path

from tests.compat.apps.streams_run import Program

PAUSE_SECONDS = (4.0, 12.0)
"""Most pauses are longer than the session timeout: the instance comes back as a former owner."""
STRIKES = ("kill", "stop", "pause", "pause")


class Instances:
    """Keeps so many processes at a time. Use it with `with`: they are killed at the end."""

    def __init__(self, program: Program, words: list[str], count: int, directory: Path, rng: random.Random) -> None:
        """`words`: of the program, but for the state's folder, which is the second."""
        self._program, self._words, self._directory, self._rng = program, words, directory, rng
        self._free = list(range(count))
        """Numbers of states that no process has."""
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0
        self.ended = 0
        """How many ended by themselves."""

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def start(self) -> None:
        """Start as many as are missing."""
        for number, process in list(self._running.items()):
            if process.poll() is not None:
                self.ended += 1
                self._free.append(self._give_up(number))
        while self._free:
            number, self.started = self._free.pop(0), self.started + 1
            bootstrap, *rest = self._words
            words = [bootstrap, str(self._directory / f"state-{number}"), *rest]
            with (self._directory / f"instance-{self.started}.log").open("wb") as log:
                self._running[number] = subprocess.Popen(
                    self._program.command(words), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )

    def strike(self, loop: asyncio.AbstractEventLoop) -> str:
        """Kill one, stop one in good order, or pause one, perhaps for longer than its session. Return which.
        Called in a thread: one that is stopped takes its time.
        """
        number, kind = self._rng.choice(sorted(self._running)), self._rng.choice(STRIKES)
        process = self._running[number]
        if kind == "pause":
            process.send_signal(signal.SIGSTOP)
            loop.call_soon_threadsafe(loop.call_later, self._rng.uniform(*PAUSE_SECONDS), self._resume, process)
        else:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            process.wait()
            self._free.append(self._give_up(number))
        return f"{kind} instance"

    def stop(self) -> None:
        """End all in good order."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for number, process in list(self._running.items()):
            process.wait()
            self._give_up(number)

    def _give_up(self, number: int) -> int:
        del self._running[number]
        return number

    @staticmethod
    def _resume(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
