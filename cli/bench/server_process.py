"""A server that the bench starts: its command, the line that says it is ready, and its end.

Place: under headrace_target.py and kafka_target.py.
Invariant: it gets SIGTERM when the bench ends, however that happens, and SIGKILL if it does not end in time. What it
writes to stderr is kept in a file of the target's folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from headrace.cli.children import die_with_parent
from headrace.storage.errors import UnavailableError

STOP_SECONDS = 30
START_SECONDS = 120
LINES_SHOWN = 3


class ServerProcess:
    """Use it with `async with`: on entry it is started."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._log = log
        self._env = env

    async def __aenter__(self) -> ServerProcess:
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=self._env,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise UnavailableError(f"cannot start: {self._command[0]}: {error.strerror}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.communicate()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self) -> bool:
        """Return whether it is not running any more."""
        return self._process.returncode is not None

    async def line(self, pattern: str) -> re.Match[str]:
        """The first line of its output that matches; UnavailableError if it ends before."""
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            async for raw in self._process.stdout:
                if match := re.match(pattern, raw.decode(errors="replace")):
                    return match
        raise self.failure()

    async def output(self) -> str:
        """All it prints, once it ended with status 0; UnavailableError otherwise."""
        printed, _ = await self._process.communicate()
        if self._process.returncode:
            raise self.failure()
        return printed.decode(errors="replace")

    def failure(self) -> UnavailableError:
        """Return what it said last."""
        lines = self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
        return UnavailableError(f"ended while starting: {' '.join(self._command[:4])}: {' | '.join(lines)}")
