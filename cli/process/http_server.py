"""uvicorn on a separate thread with a separate event loop; the process keeps its signal handlers.

Place: started after the Kafka listener, stopped after it.
Invariant: `start` returns when the port accepts connections. If the thread crashes, Kafka traffic continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from headrace.agent.listener.bound_sockets import bound_sockets, why_unbound
from headrace.storage.errors import InvalidError

T = TypeVar("T")
ANSWER_TIMEOUT_SECONDS = 5.0
TICK_SECONDS = 1.0
BACKLOG = 64
"""Connections that are accepted in one turn of the loop, before any of them is judged."""


class _Server(uvicorn.Server):
    """Looks once a second for the time of day, and at once whether to end; uvicorn's looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Run the loop until `end`."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopping.wait()

    def end(self) -> None:
        """End the loop from another thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)


class HttpServer:
    """One application at one address."""

    def __init__(self, app: ASGIApp, host: str, port: int, connection: Callable[..., Any]) -> None:
        """`connection` makes the protocol of one connection. InvalidError if the address cannot be bound."""
        try:
            self._sockets = bound_sockets(host, port, BACKLOG)
        except OSError as error:
            raise InvalidError(
                f"{why_unbound(host, port, error)}; choose another http.port, or stop the process that uses it"
            ) from error
        self.port: int = self._sockets[0].getsockname()[1]
        made: Any = connection  # uvicorn's annotation is a class, but it only calls it
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", http=made, ws="none", backlog=BACKLOG
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve. The socket listens from the constructor on, so no request is refused meanwhile."""
        self._thread.start()

    def stop(self) -> None:
        """Finish requests in progress and close; blocks for at most a few seconds."""
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        for listening in self._sockets:
            listening.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=self._sockets))


async def ask(loop: asyncio.AbstractEventLoop, question: Coroutine[Any, Any, T]) -> T:
    """Run `question` on the agent's loop and wait for it on this one. TimeoutError if that loop is stuck."""
    future = asyncio.run_coroutine_threadsafe(question, loop)
    async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
        return await asyncio.wrap_future(future)
