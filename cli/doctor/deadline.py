"""Deadlines of the doctor's checks, and threads that do not keep the process when what they wait for never comes.

Place: around what each area of `headrace doctor` asks.
Invariant: a check ends at its deadline, also if the checked side does not answer: what is asked is cancelled, and its
end is not waited for. A thread that a file system or a name server blocks ends with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from headrace.cli.doctor.findings import Area, Finding
from headrace.storage.clock import Clock, within

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """An executor with a thread for each call, for which neither the event loop's end nor the process's waits.

    The standard one is joined by both, so a read of a file system that hangs would keep a finished command.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a thread that calls it."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=call, name="doctor", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nothing."""


def run_to_end(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a new event loop, as asyncio.run does, with threads that are not waited for."""

    async def with_daemons() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        return await work()

    return asyncio.run(with_daemons())


async def on_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on a separate event loop, in a thread: what takes its CPU time does not stop the caller's loop."""
    return await asyncio.get_running_loop().run_in_executor(DaemonThreads(), run_to_end, work)


async def in_time(
    clock: Clock, seconds: float, area: Area, check: str, work: Awaitable[Iterable[Finding]], to_do: str
) -> list[Finding]:
    """Return the findings, or one that says that they are not known after so many seconds."""
    try:
        return [*await within(clock, seconds, work)]
    except TimeoutError:
        return [area.unknown(check, f"no answer in {seconds:g} s", to_do)]
