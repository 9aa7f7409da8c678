"""Runs several agents as child processes until a signal, or until one of them exits.

Place: `headrace agent --processes N`; one HTTP listener for all (pages.py).
Invariant: SIGTERM drains all agents; none is killed while it drains, because the platform decides how long that may
take. A second signal kills them. An agent that exits by itself takes the command down, after the others have drained:
a platform restarts the command as a whole, and an agent that cannot run is not hidden behind its neighbours. If this
process is killed, the kernel sends the agents SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from headrace.agent.limits.limit_metrics import limits_reached
from headrace.cli.children import AgentProcess
from headrace.cli.output import write, write_error
from headrace.cli.process.http_connection import bounded
from headrace.cli.process.http_security import HttpSecurity
from headrace.cli.process.http_server import HttpServer
from headrace.cli.process.serve import open_log, warn_of_settings_that_go
from headrace.cli.several_agents.pages import ChildPages, ReadyChild, make_pages
from headrace.cli.several_agents.places import places
from headrace.config.addresses import address_text
from headrace.config.listeners import http_port
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.errors import UnavailableError

logger = logging.getLogger(__name__)

OWN_PAGES = {"http.host": "127.0.0.1", "http.port": "0", "http.ssl.keystore.location": "",
             "http.ssl.truststore.location": ""}  # fmt: skip
"""Addresses at which each agent shows its pages to this process."""


def serve_processes(settings: Settings, count: int, passed_on: dict[str, str]) -> int:
    """Serve until a signal arrives: 0 after a clean drain, 1 if an agent exited. `passed_on`: flags of each agent."""
    own = places(settings, count)
    open_log(settings)
    warn_of_settings_that_go(settings)
    with _token_file() as (token, path, descriptor):
        pages = OWN_PAGES | {"http.bearer.token.location": path}
        agents = [
            AgentProcess(passed_on | pages | place, ["--process-of", f"{index}/{count}"], [descriptor])
            for index, place in enumerate(own)
        ]
        return asyncio.run(_Supervisor(settings, agents, ChildPages(token, count)).run())


class _Supervisor:
    def __init__(self, settings: Settings, agents: Sequence[AgentProcess], members: ChildPages) -> None:
        self._agents, self._members = agents, members
        self._stopping = asyncio.Event()
        security = HttpSecurity(settings, SystemClock())
        connection = bounded(settings.http_max_connections, limits_reached(CollectorRegistry()))
        app = security.guarded(make_pages(members))
        self._http = HttpServer(app, settings.http_host, http_port(settings), security.encrypted(connection))
        self._address = address_text(settings.http_host, self._http.port)

    async def run(self) -> int:
        """The exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        stop = asyncio.create_task(self._stopping.wait())
        starts = asyncio.gather(*(agent.start() for agent in self._agents))
        self._http.start()
        try:
            await asyncio.wait((starts, stop), return_when=asyncio.FIRST_COMPLETED)
            if not starts.done():
                return 0
            self._show(await starts)
            exits = [asyncio.create_task(agent.wait()) for agent in self._agents]
            await asyncio.wait((stop, *exits), return_when=asyncio.FIRST_COMPLETED)
            return 0 if stop.done() else self._report(exits)
        except UnavailableError:
            if self._stopping.is_set():  # a signal that also the agents got
                return 0
            raise
        finally:
            stop.cancel()
            await self._drain()
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)
            await asyncio.to_thread(self._http.stop)

    def _show(self, lines: Sequence[str]) -> None:
        self._members.ready = [ReadyChild(agent.field("node"), agent.field("http")) for agent in self._agents]
        nodes = ",".join(agent.field("node") for agent in self._agents)
        kafka = ",".join(agent.kafka_address for agent in self._agents)
        for line in lines:
            logger.info("agent started: %s", line)
        write(f"ready node={nodes} kafka={kafka} http={self._address}", flush=True)

    def _report(self, exits: Sequence[asyncio.Task[int]]) -> int:
        for agent, exited in zip(self._agents, exits, strict=True):
            if exited.done():
                problem = f"agent exited, the others drain and the command ends: node={agent.field('node')}"
                write_error(f"error: {problem} status={exited.result()}")
        return 1

    async def _drain(self) -> None:
        self._members.draining = True
        for agent in self._agents:
            agent.terminate()
        await asyncio.gather(*(agent.wait() for agent in self._agents if agent.was_started))

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            for agent in self._agents:
                agent.kill()
        self._stopping.set()


@contextmanager
def _token_file() -> Iterator[tuple[str, str, int]]:
    """(token, path, descriptor) of a file in memory that only this process and its agents can open."""
    token = secrets.token_hex(32)
    descriptor = os.memfd_create("headrace-token")
    try:
        os.write(descriptor, token.encode())
        yield token, f"/proc/self/fd/{descriptor}", descriptor
    finally:
        os.close(descriptor)
