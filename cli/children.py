"""`headrace agent` as a child process: start it, wait until it is ready, stop it.

Place: used by `headrace dev`.
Invariant: the kernel sends the child SIGTERM when its parent exits for any reason (Linux PDEATHSIG).
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
    """One child process; `settings` are dotted names and values, passed as flags."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", value)]
        self._process: asyncio.subprocess.Process | None = None
        self.kafka_address = "?"

    async def start(self) -> str:
        """Start the child and return its ready line. UnavailableError if it exits instead."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", "agent", *self._flags,
            stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent,
        )  # fmt: skip
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode().rstrip()
            if match := re.match(r"ready .*kafka=(\S+)", line):
                self.kafka_address = match[1]
                return f"{line} pid={self._process.pid}"
        raise UnavailableError(f"agent exited while starting: status={await self._process.wait()}")

    async def wait(self) -> int:
        """The exit status, after the process has exited."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not exit in time."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
