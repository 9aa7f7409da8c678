"""A pytest plugin: what bounds a test is the CPU time of its processes, so that a busy machine fails none.

Place: on the hooks of pytest-timeout, which bounds the wall time (`timeout` of pyproject.toml: 20 minutes) and then
prints all stacks. The CPU limit is far above what any test takes; what reaches it is a loop without an end. A test that
does not end when its wall time is over ends with its worker: asyncio.run waits without end for a thread that hangs.
Invariant: only one test is watched at a time, by one thread for each worker.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from tests.house.process_cpu import process_tree

CPU_SECONDS_MAX = 120
"""The longest test takes 20."""
CPU_SECONDS_MAX_OF_SLOW = 1_800
WALL_SECONDS_TO_END = 120.0
"""How long a test may take to end after pytest-timeout has failed it."""
_LOOK_SECONDS = 2.0


class Watch:
    """Sends SIGXCPU to this process once the watched test has used its CPU time; ends it if the test does not end."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._ends_at: float | None = None
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._look, name="cpu limit", daemon=True)
        self._thread.start()

    def begin(self, cpu_seconds_max: float, wall_seconds_max: float | None) -> None:
        """Watch from now on. `wall_seconds_max`: of pytest-timeout."""
        self._limit = process_tree().seconds() + cpu_seconds_max
        self._ends_at = wall_seconds_max and time.monotonic() + wall_seconds_max + WALL_SECONDS_TO_END

    def end(self) -> None:
        """Stop watching."""
        self._limit = self._ends_at = None

    def _look(self) -> None:
        while not self._wakes.wait(_LOOK_SECONDS):
            limit = self._limit
            if limit is not None and process_tree().fresh_seconds() > limit:
                self._limit = None
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGXCPU)
            ends_at = self._ends_at
            if ends_at is not None and time.monotonic() > ends_at:
                faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
                os._exit(1)


def _fail(number: int, frame: FrameType | None) -> None:
    __tracebackhide__ = True
    faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
    pytest.fail("the test's processes used more CPU time than a test may (tests/house/limits.py)")


_watches: list[Watch] = []


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Begin to watch a test; pytest-timeout's own timer is set after this."""
    if not _watches:
        signal.signal(signal.SIGXCPU, _fail)
        _watches.append(Watch())
    is_slow = item.get_closest_marker("slow") is not None
    _watches[0].begin(CPU_SECONDS_MAX_OF_SLOW if is_slow else CPU_SECONDS_MAX, settings.timeout)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer() -> None:
    """Stop watching; pytest-timeout's own timer is cancelled after this."""
    if _watches:
        _watches[0].end()
