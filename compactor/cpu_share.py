"""Limits the CPU time of background work: after each step its thread pauses in proportion.

Place: the default executor of the worker's event loop (worker.py), so it runs every step that a merge moves to a
thread: opening, checking, merging and compressing records, laying files out.
Invariant: a step that used t seconds of CPU is followed by a pause of t x (100 / percent - 1) seconds before its
result is returned, so each job uses about `percent` of one core, and all results are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CpuShare(ThreadPoolExecutor):
    """`cpu_seconds`: CPU time of the calling thread so far; `rest` blocks that thread."""

    def __init__(
        self,
        percent: int,
        *,
        cpu_seconds: Callable[[], float] = time.thread_time,
        rest: Callable[[float], Any] = time.sleep,
    ) -> None:
        super().__init__(thread_name_prefix="paced")
        self._rest_per_second = 100 / percent - 1
        self._cpu_seconds, self._rest = cpu_seconds, rest

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit as Executor does."""
        return super().submit(self._step, fn, *args, **kwargs)

    def _step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        began = self._cpu_seconds()
        try:
            return fn(*args, **kwargs)
        finally:
            self._rest((self._cpu_seconds() - began) * self._rest_per_second)
