"""Idle connections to other agents, to notice at once that a process is gone.

Place: kept by the controller (controller.py): the active one to all agents, a standby to the active one's agent.
Invariant: an agent counts as gone only if its link was up, broke, and a new connection is refused or its host is
unreachable. A connection that gets no answer proves nothing: a frozen or partitioned agent keeps its lease, and only
the lease ends it. No request is sent: the kernel's keepalives notice a host that vanished.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

from headrace.metastore.log.image import AgentImage
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
"""How long an attempt to connect may take before it proves nothing."""
RETRY_SECONDS = 1.0
"""Pause after an attempt that failed, and after a link that broke at once."""
_GONE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


class AgentLink(Protocol):
    """An open connection."""

    async def broken(self) -> None:
        """Return when the other side closed it or the network lost it."""

    def close(self) -> None:
        """Close it."""


Connect = Callable[[str, int], Awaitable[AgentLink]]
"""Opens a link; OSError if that fails."""
LinkKey = tuple[int, int]
"""Node id and broker epoch: a new registration is another agent."""


class AgentLinks:
    """`keep` says to whom, `close` ends it. For one event loop."""

    def __init__(
        self,
        on_gone: Callable[[AgentImage], Awaitable[None]],
        clock: Clock,
        connect: Connect | None = None,
        listener: str | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`on_gone` is called again after RETRY_SECONDS while the agent stays gone and is among those to keep.
        `listener`: inter.broker.listener.name. `supervisor`: the process's; None: a separate one."""
        self._supervisor = supervisor or Supervisor(clock)
        self._listener = listener
        self._on_gone = on_gone
        self._clock = clock
        self._connect = connect or open_link
        self._tasks: dict[LinkKey, asyncio.Task[None]] = {}

    def keep(self, agents: Iterable[AgentImage]) -> None:
        """Keep links to exactly these agents from now on."""
        wanted = {(agent.node_id, agent.broker_epoch): agent for agent in agents}
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
        for key, agent in wanted.items():
            if key not in self._tasks:
                self._tasks[key] = self._supervisor.keep("links to agents", partial(self._hold, agent))

    async def close(self) -> None:
        """Close all links."""
        tasks = list(self._tasks.values())
        self.keep(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(self, agent: AgentImage) -> None:
        was_up = False
        while True:
            up_at = self._clock.monotonic()
            try:
                await self._until_broken(agent)
                was_up = True
            except OSError as error:
                if was_up and error.errno in _GONE:
                    await self._report(agent, error)
            if self._clock.monotonic() - up_at < RETRY_SECONDS or not was_up:
                await self._clock.sleep(RETRY_SECONDS)

    async def _until_broken(self, agent: AgentImage) -> None:
        """OSError if no link could be opened."""
        link = await self._opened(agent)
        try:
            await link.broken()
        finally:
            link.close()

    async def _opened(self, agent: AgentImage) -> AgentLink:
        address = agent.endpoint(self._listener)
        opening = self._connect(address.host, address.port)
        try:
            return await within(self._clock, CONNECT_SECONDS, opening, lambda link: link.close())
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "no answer") from None

    async def _report(self, agent: AgentImage, error: OSError) -> None:
        try:
            await self._on_gone(agent)
        except HeadraceError as failure:
            logger.warning("an agent is gone, not reported: node_id=%d link=%s error=%s", agent.node_id, error, failure)


class _TcpLink:
    """A connection on which nothing is sent; bytes that arrive are dropped."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def broken(self) -> None:
        try:
            while await self._reader.read(4096):
                pass
        except OSError as error:
            logger.debug("link broke: error=%s", error)

    def close(self) -> None:
        self._writer.transport.abort()


async def open_link(host: str, port: int, tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> AgentLink:
    """A connection with keepalives, encrypted if `tls` returns a context.

    OSError if no address of the host takes one: with an errno that says that the agent is gone only if every address
    says so.
    """
    loop, errors = asyncio.get_running_loop(), list[OSError]()
    for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            context = tls()
            name = None if context is None else host
            reader, writer = await asyncio.open_connection(str(address[0]), port, ssl=context, server_hostname=name)
        except OSError as error:
            errors.append(error)
            continue
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return _TcpLink(reader, writer)
    raise min(errors, key=lambda error: error.errno in _GONE)
