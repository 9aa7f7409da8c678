"""`headrace agent` as a child process: start it, wait until it is ready, stop it.

Place: used by `headrace dev`, and by `headrace agent --processes`; forked_agent.py makes the process.
Invariant: the child gets SIGTERM when this process exits for any reason. It is in a separate process group: Ctrl-C in
a terminal reaches the parent only, which passes it on once. A child that got it twice would end without draining.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from headrace.cli.forked_agent import fork_agent
from headrace.storage.errors import UnavailableError

STOP_SECONDS = 20


class AgentProcess:
    """One child process; `settings` are dotted names and values, passed as flags."""

    def __init__(self, settings: dict[str, str], words: Sequence[str] = (), keep_open: Sequence[int] = ()) -> None:
        """`words`: more arguments; `keep_open`: descriptors that the child gets."""
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", value)]
        self._arguments, self._keep_open = [*words, *flags], keep_open
        self._process: BaseProcess | None = None
        self._output: asyncio.ReadTransport | None = None
        self._exited = asyncio.Event()
        self._fields: dict[str, str] = {}

    @property
    def kafka_address(self) -> str:
        """Return where clients connect; "?" before it is ready."""
        return self._fields.get("kafka", "?")

    @property
    def was_started(self) -> bool:
        """Whether there is a process, or was one."""
        return self._process is not None

    def field(self, name: str) -> str:
        """A field of the ready line; "?" before it is ready."""
        return self._fields.get(name, "?")

    async def start(self) -> str:
        """Start the child and return its ready line. UnavailableError if it exits instead."""
        lines = await self._start()
        async for raw in lines:
            line = raw.decode().rstrip()
            if line.startswith("ready "):
                self._fields = dict(re.findall(r"(\w+)=(\S+)", line))
                return f"{line} pid={self._process.pid if self._process else 0}"
        raise UnavailableError(f"agent exited while starting: status={await self.wait()}")

    async def _start(self) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        lines = asyncio.StreamReader()
        self._output, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb")
        )
        forked = asyncio.create_task(asyncio.to_thread(fork_agent, self._arguments, writing, self._keep_open))
        try:
            self._process = await asyncio.shield(forked)
        except asyncio.CancelledError:
            self._process = await forked  # else nothing would stop it
            raise
        finally:
            os.close(writing)
            if self._process is not None:
                loop.add_reader(self._process.sentinel, self._on_exit)
        return lines

    def _on_exit(self) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        if self._output is not None:
            self._output.close()
        self._exited.set()

    async def wait(self) -> int:
        """The exit status, after the process has exited; negative: the signal that ended it."""
        await self._exited.wait()
        assert self._process is not None
        return int(self._process.exitcode or 0)

    def terminate(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not exit in time."""
        if not self.was_started:
            return
        self.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            self.kill()
            await self._exited.wait()
