"""An event loop with virtual time and with processes that can be frozen or killed.

Place: under every simulated schedule; the agents' real code runs on it unchanged.
Invariant: one step at a time, in an order that follows from the calls alone: a ready callback first
come first served, a timer when nothing is ready, time jumping to it. Code that needs another
order draws random delays. Work in "threads" runs at once and ends a little later.
A process is everything that runs in a context with its number as OWNER. Frozen, its steps wait;
killed, they never run again while the schedule lasts, not even a `finally`: as after kill -9.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OWNER: contextvars.ContextVar[int] = contextvars.ContextVar("owner", default=0)
"""The process that a step belongs to; 0 is the world around the agents."""

STEPS_MAX = 800_000
"""A schedule needs some ten thousand, one with minutes of silence half a million; more means that something spins."""
THREAD_SECONDS = 0.0005


class SpinningError(Exception):
    """The schedule does not come to an end: too many steps, or nothing left that could ever happen."""


Dial = Callable[[asyncio.BufferedProtocol, int], Awaitable[asyncio.Transport]]


class VirtualLoop(asyncio.BaseEventLoop):
    """`on_error` gets exceptions that no task awaited; `dial` connects a protocol to a port, or raises OSError."""

    def __init__(self, on_error: Callable[[str], None], dial: Dial) -> None:
        self._is_running = self._is_over = False
        super().__init__()
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._frozen: dict[int, list[asyncio.Handle]] = {}
        self._killed: set[int] = set()
        self._on_error = on_error
        self._dial = dial
        self.steps = 0

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The result of `main`. Everything else is then cancelled, the frozen and the killed too."""
        asyncio.events._set_running_loop(self)
        self._is_running = True
        try:
            task = self.create_task(main)
            while not task.done():
                self._step()
            result: T = task.result()
            return result
        finally:
            self._bury()
            self._is_running, self._is_over = False, True
            asyncio.events._set_running_loop(None)

    def freeze(self, owner: int) -> None:
        """No step of this process runs until `thaw`."""
        self._frozen.setdefault(owner, [])

    def thaw(self, owner: int) -> None:
        """It continues, with everything that came due meanwhile; unless it was killed."""
        if owner not in self._killed:
            self._ready.extend(self._frozen.pop(owner, []))

    def kill(self, owner: int) -> None:
        """No step of this process ever runs again."""
        self._frozen.setdefault(owner, [])
        self._killed.add(owner)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise SpinningError(f"schedule does not end: steps={self.steps} virtual_seconds={self._now:.1f}")
        if not self._ready:
            self._advance()
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        if self._frozen:
            owner = handle._context.get(OWNER, 0)  # type: ignore[attr-defined]
            if owner in self._frozen:
                self._frozen[owner].append(handle)
                return
        handle._run()

    def _advance(self) -> None:
        """Jump to the next timer."""
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if not handle._cancelled:
                self._now = max(self._now, when)
                self._ready.append(handle)
                return
        raise SpinningError(f"nothing can happen any more: virtual_seconds={self._now:.1f}")

    def _bury(self) -> None:
        """End what is left, so that no coroutine is closed by the garbage collector at a random moment."""
        self._on_error = lambda message: None
        self._timers.clear()
        self._killed.clear()
        while left := [task for task in asyncio.all_tasks(self) if not task.done()]:
            for task in left:
                task.cancel()
            for owner in list(self._frozen):
                self.thaw(owner)
            while self._ready:
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """Virtual seconds since the schedule began."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Create the connection to the world's endpoint at that port."""
        protocol = protocol_factory()
        transport = await self._dial(protocol, port)
        protocol.connection_made(transport)
        return transport, protocol

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """`func` is called at once; its result comes THREAD_SECONDS later."""
        future = self.create_future()
        try:
            self.call_later(THREAD_SECONDS, _settle, future, func(*args), None)
        except Exception as error:
            self.call_later(THREAD_SECONDS, _settle, future, None, error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_over

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time comes."""


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
