"""`headrace agent` as a child process: started, awaited until ready, stopped.

Place: under `headrace dev`.
Invariant: the child gets SIGTERM when its parent dies, however that happens (Linux PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import ctypes
import re
import signal
import sys

from headrace.storage.errors import UnavailableError

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 20


class AgentProcess:
    """One child; `settings` are dotted names and values, handed over as flags."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", value)]
        self._process: asyncio.subprocess.Process | None = None
        self.kafka_address = "?"

    async def start(self) -> str:
        """Start and return the child's ready line. UnavailableError when it ended instead."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", "agent", *self._flags,
            stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL, preexec_fn=_die_with_parent,
        )  # fmt: skip
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode().rstrip()
            if match := re.match(r"ready .*kafka=(\S+)", line):
                self.kafka_address = match[1]
                return f"{line} pid={self._process.pid}"
        raise UnavailableError(f"an agent ended while starting: status={await self._process.wait()}")

    async def wait(self) -> int:
        """The exit status, once it ended."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when it does not end in time."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
