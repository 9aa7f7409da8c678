"""The simulation's loop, told which process runs: it counts the target's steps and stops it after one of them.

Fault model: SIGSTOP after any step of one process. What it had sent is answered meanwhile, its timers come
due, its answers wait; SIGCONT lets it continue as if nothing had been.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import OWNER, Dial, VirtualLoop


class PausingLoop(VirtualLoop):
    """`after_step(owner)` is called after each step of a process, of whichever is not frozen."""

    def __init__(self, on_error: Callable[[str], None], after_step: Callable[[int], None], dial: Dial) -> None:
        super().__init__(on_error, dial)
        self._after_step = after_step
        self._tasks: dict[int, set[asyncio.Task[Any]]] = {}

    def is_frozen(self, owner: int) -> bool:
        return owner in self._frozen

    def tasks_of(self, owner: int) -> set[asyncio.Task[Any]]:
        """Those of a process that have not ended."""
        return self._tasks.get(owner, set())

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        owner = OWNER.get() if context is None else context.get(OWNER, 0)
        tasks = self._tasks.setdefault(owner, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def _step(self) -> None:
        if not self._ready:
            self._advance()
        handle = self._ready[0]
        owner = handle._context.get(OWNER, 0)  # type: ignore[attr-defined]
        runs = owner and not handle._cancelled and not self.is_frozen(owner)
        super()._step()
        if runs:
            self._after_step(owner)
