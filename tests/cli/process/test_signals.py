"""Signals of a process that serves: the first drains it, and none meets a loop that is half closed."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, cast

import pytest

from headrace.cli.process import serve
from headrace.cli.process.shell import ProcessShell
from headrace.config.settings import Settings


class Serving:
    """A process that is ready at once, gets a signal then, and drains."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.drained = 0

    async def require_formatted_storage(self) -> None:
        """It is."""

    async def start(self) -> None:
        """Ready."""

    def ready_line(self) -> str:
        os.kill(os.getpid(), self._number)
        return "ready"

    async def stop(self) -> None:
        """Count the drains."""
        self.drained += 1


@pytest.mark.parametrize("number", serve.SIGNALS)
def test_after_the_drain_a_signal_finds_no_handler_of_the_loop(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop closes the pipe that its handlers write to before it takes them off."""
    process = Serving(number)
    monkeypatch.setattr(serve, "tune_collector", lambda: None)

    async def opened(settings: Settings) -> ProcessShell:
        return cast(Any, process)

    async def run() -> tuple[int, list[object]]:
        status = await serve._serve(Settings(), opened, None)
        return status, [signal.getsignal(each) for each in serve.SIGNALS]

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert asyncio.run(run()) == (0, [signal.SIG_DFL, signal.default_int_handler])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert process.drained == 1
