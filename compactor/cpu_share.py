"""A limit to the processor time of background work: after each step its thread rests in proportion.

Place: the default executor of the worker's own loop (worker.py), so under every step that a merge hands to a thread:
opening, checking, merging and compressing records, laying files out.
Invariant: a step that took t seconds of a core is followed by t x (100 / percent - 1) seconds of rest before its
result is told, so over any time each job takes about `percent` of one core, and nothing is computed differently.
If the process dies here nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CpuShare(ThreadPoolExecutor):
    """`cpu_seconds`: of the calling thread so far; `rest` holds that thread up."""

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
        """As an executor's."""
        return super().submit(self._step, fn, *args, **kwargs)

    def _step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        began = self._cpu_seconds()
        try:
            return fn(*args, **kwargs)
        finally:
            self._rest((self._cpu_seconds() - began) * self._rest_per_second)
