"""Agents of a torture run that are forked from loaded code, which takes a fifth of the CPU time of a new interpreter.

Place: in the short run of `make test`, instead of tests/torture/agents.py; longer runs start `headrace agent`.
Their log is this process's standard error, in which conftest.py finds tracebacks.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import cast

from tests.agent_process import Forked
from tests.torture.agents import ProxiedAgent

LOOK_SECONDS = 0.02
"""The time between two looks whether a process has ended."""


class ForkedAgent(ProxiedAgent):
    """Its environment is that of this process: it needs the bucket's credentials."""

    async def _begin(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        return cast(asyncio.subprocess.Process, ForkedProcess(words))


class ForkedProcess:
    """The part of asyncio.subprocess.Process that ProxiedAgent uses."""

    def __init__(self, words: Sequence[str]) -> None:
        reading, writing = os.pipe()
        self._forked = Forked(words, writing)
        os.close(writing)
        self._output = open(reading, "rb")  # noqa: SIM115 - a full pipe would stop the agent
        self.stdout = self
        self.pid = self._forked.pid

    @property
    def returncode(self) -> int | None:
        return self._forked.poll()

    async def readline(self) -> bytes:
        return await asyncio.to_thread(self._output.readline)

    async def wait(self) -> int:
        while (status := self._forked.poll()) is None:  # noqa: ASYNC110 - no event says that it ended
            await asyncio.sleep(LOOK_SECONDS)
        self._output.close()
        return status

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._forked.terminate()

    def kill(self) -> None:
        self._forked.kill()
