"""Runs several agents as child processes until a signal, or until one of them exits.

Place: `headrace agent --processes N`; one HTTP listener for all, which asks all of them for each page. The agents'
own pages are on the loopback interface and need a token.
Invariant of pages: a page is complete or fails. Metrics without those of one agent would look like counters that
fell. Counters and histograms are sums, so that rates and quantiles are those of all agents. A gauge is a state of
one agent (a broker state, bytes in use): it keeps its value and gets the label `node_id`.
Invariant: SIGTERM drains all agents; none is killed while it drains, because the platform decides how long that may
take. A second signal kills them. An agent that exits by itself takes the command down, after the others have
drained: a platform restarts the command as a whole, and an agent that cannot run is not hidden behind its
neighbours. If this process is killed, the kernel sends the agents SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import aiohttp
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.agent.limits.metrics import limits_reached
from headrace.cli.children import AgentProcess, places
from headrace.cli.output import write, write_error
from headrace.cli.process.http_security import MAY_READ, HttpSecurity
from headrace.cli.process.http_server import HttpServer, bounded
from headrace.cli.process.serve import open_log, warn_of_settings_that_go
from headrace.config.addresses import address_text
from headrace.config.listeners import http_port
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.errors import UnavailableError

ANSWER_SECONDS = 4.0
"""Less than probes and scrapes usually allow."""
NODE = "node_id"
_SUMMED = ("counter", "histogram", "summary")
_Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and sorted labels of a sample."""


class ReadyChild(NamedTuple):
    """A ready agent: its node id, and the address of its HTTP pages."""

    node_id: str
    http: str


class ChildAnswer(NamedTuple):
    """Status 0: no answer in time."""

    status: int
    text: str


class ChildPages:
    """The agents once they are ready. Written by the main thread, read by the HTTP thread."""

    def __init__(self, token: str, count: int) -> None:
        self.ready: Sequence[ReadyChild] = ()
        self.draining = False
        self._count = count
        self._headers = {"Authorization": f"Bearer {token}"}

    def reason(self) -> str | None:
        """Return why clients should not come; None once all agents are ready."""
        if self.draining:
            return "draining"
        return None if len(self.ready) == self._count else f"{self._count} agents start"

    async def ask(self, path: str) -> Mapping[str, ChildAnswer]:
        """Every agent's answer, by node id."""
        members = self.ready
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            answers = await asyncio.gather(*(_answer(session, f"http://{m.http}{path}") for m in members))
        return {member.node_id: answer for member, answer in zip(members, answers, strict=True)}


async def _answer(session: aiohttp.ClientSession, url: str) -> ChildAnswer:
    try:
        async with session.get(url) as response:
            return ChildAnswer(response.status, await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return ChildAnswer(0, "")


def make_pages(members: ChildPages) -> Starlette:
    """The same paths as an agent has (process/http_app.py)."""

    async def healthz(request: Request) -> Response:
        silent = [node_id for node_id, answer in (await members.ask("/healthz")).items() if answer.status != 200]
        if not silent:
            return JSONResponse({"status": "alive"})
        return JSONResponse({"status": "not alive", "reason": f"no answer: node_id={','.join(silent)}"}, 503)

    async def readyz(request: Request) -> Response:
        path = "/readyz?verbose" if "verbose" in request.query_params else "/readyz"
        body = _readiness(members.reason(), await members.ask(path))
        code = 200 if body["status"] == "ready" else 503
        return JSONResponse(body if getattr(request.state, MAY_READ, True) else {"status": body["status"]}, code)

    async def metrics(request: Request) -> Response:
        answers = await members.ask("/metrics")
        if reason := members.reason() if not answers else _unanswered(answers):
            return Response(f"{reason}\n", 503, media_type="text/plain")
        return Response(
            summed({node_id: answer.text for node_id, answer in answers.items()}), media_type=CONTENT_TYPE_LATEST
        )

    async def status(request: Request) -> Response:
        answers = await members.ask("/v1/status")
        if reason := _unanswered(answers):
            return JSONResponse({"reason": reason}, 503)
        return JSONResponse({"agents": {node_id: json.loads(answer.text) for node_id, answer in answers.items()}})

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/v1/status": status}
    return Starlette(routes=[Route(path, answer) for path, answer in pages.items()])


def _unanswered(answers: Mapping[str, ChildAnswer]) -> str:
    """Empty if all agents answered."""
    return "; ".join(f"no answer: node_id={node_id}" for node_id, answer in answers.items() if answer.status != 200)


def _readiness(reason: str | None, answers: Mapping[str, ChildAnswer]) -> dict[str, Any]:
    """Ready when all are; `agents` has each one's own answer, if it gave one."""
    own = {node_id: json.loads(answer.text) if answer.status else {} for node_id, answer in answers.items()}
    broken = [
        f"node_id={node_id}: {own[node_id].get('reason', 'no answer')}"
        for node_id, answer in answers.items()
        if answer.status != 200
    ]
    reasons = broken if reason is None else [reason, *broken]
    body: dict[str, Any] = {"status": "not ready", "reason": "; ".join(reasons)} if reasons else {"status": "ready"}
    return body | {"agents": own}


class _Page(Collector):
    """Families that are complete already."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def summed(pages: Mapping[str, str]) -> bytes:
    """The text of one page from the pages of agents, by node id."""
    families: dict[str, Metric] = {}
    totals: dict[str, dict[_Series, float]] = {}
    for node_id, page in pages.items():
        for family in text_string_to_metric_families(page):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            values = totals.setdefault(family.name, {})
            for sample in family.samples:
                own = {} if family.type in _SUMMED else {NODE: node_id}
                series = (sample.name, tuple(sorted((sample.labels | own).items())))
                values[series] = values.get(series, 0.0) + sample.value
    for name, values in totals.items():
        for (sample_name, labels), value in values.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(families))
    return generate_latest(registry)


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
