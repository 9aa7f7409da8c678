"""Judges what agents say by HTTP: the clocks of their machines, and whether they are ready.

Place: one part of the area cluster of `headrace doctor`. The metastore does not know where an agent's HTTP listener is:
it is asked at http.port of the settings, on the host that the agent advertises.
Invariant: reads only: one GET of /readyz for each host. A host that does not answer there is not known, not bad: by
default the listener is for its own machine.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from headrace.cli.doctor.certificates import unverified
from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.log.image import AgentImage
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock, within

AREA = Area("cluster")
ASK_SECONDS = 3.0
DEFAULT_PORT = 9644
BODY_BYTES_MAX = 64 * 1024
CLOCK_WARN_S, CLOCK_BAD_S = 5.0, 30.0
"""Limits of a Date, which has whole seconds and is made once a second."""


class Told(NamedTuple):
    """What one host answered. `error` is empty if it did."""

    error: str = ""
    status: int = 0
    body: bytes = b""
    ahead_s: float = 0.0
    """How far its clock is ahead of this machine's."""


async def examine_agents(live: Sequence[AgentImage], settings: Settings, clock: Clock) -> list[Finding]:
    """Every finding; none without live agents."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for agent in live:
        by_host[agent.host].append(agent.node_id)
    port = settings.http_port or DEFAULT_PORT
    is_secure = bool(settings.http_ssl_keystore_location)
    told = await asyncio.gather(*(_ask(host, port, is_secure, clock) for host in by_host))
    answers = {", ".join(map(str, sorted(by_host[host]))): each for host, each in zip(by_host, told, strict=True)}
    return [*judge_clocks(answers, port), *judge_readiness(answers)]


def judge_clocks(answers: Mapping[str, Told], port: int) -> Iterator[Finding]:
    """`answers`: by the node ids at each host, for people."""
    silent = [f"{ids} ({told.error})" for ids, told in answers.items() if told.error]
    if silent:
        why = f"agents that do not answer at http.port={port} of the host that they advertise: {'; '.join(silent)}"
        yield AREA.unknown("clocks", why, "run the doctor on their machines, or set http.host and http.port")
    heard = {ids: told for ids, told in answers.items() if not told.error}
    for ids, told in heard.items():
        side = "ahead of" if told.ahead_s > 0 else "behind"
        found = f"the clock of agent {ids} is {abs(told.ahead_s):.0f} s {side} this machine's"
        if abs(told.ahead_s) > CLOCK_WARN_S:
            judge = AREA.bad if abs(told.ahead_s) > CLOCK_BAD_S else AREA.warn
            yield judge("clocks", found, "run NTP on both: timestamps of records, tokens and certificates depend on it")
    if heard and all(abs(told.ahead_s) <= CLOCK_WARN_S for told in heard.values()):
        yield AREA.ok("clocks", f"this machine's and those of agents {', '.join(heard)} agree")


def judge_readiness(answers: Mapping[str, Told]) -> Iterator[Finding]:
    """Return what /readyz says, if it is not just "ready"."""
    heard = {ids: _parsed(told) for ids, told in answers.items() if not told.error}
    ready = []
    for ids, body in heard.items():
        if body is None:
            continue
        if body.get("status") != "ready":
            found = f"agent {ids}: /readyz says {_words(body, 'not ready', 'reason')}"
            yield AREA.bad("ready", found, "the balancer sends it no clients; its reason and its log say why")
        elif body.get("details"):
            found = f"agent {ids}: /readyz says ready, and: {_words(body, '', 'details')}"
            yield AREA.warn("ready", found, "it fails there, for all agents or for a moment: look at what it names")
        else:
            ready.append(ids)
    if ready:
        yield AREA.ok("ready", f"/readyz of agents {', '.join(ready)} says ready")


def _words(body: Mapping[str, object], otherwise: str, name: str) -> str:
    given = body.get(name) or body.get("status") or otherwise
    text = "; ".join(map(str, given)) if isinstance(given, list) else str(given)
    return shown(text)


def _parsed(told: Told) -> dict[str, object] | None:
    """Return the answer of /readyz; None if it is none."""
    with suppress(ValueError):
        body = json.loads(told.body)
        if isinstance(body, dict) and isinstance(body.get("status"), str):
            return body
    return None


async def _ask(host: str, port: int, is_secure: bool, clock: Clock) -> Told:
    try:
        return await within(clock, ASK_SECONDS, asyncio.to_thread(_get, host, port, is_secure, clock))
    except TimeoutError:
        return Told(f"no answer in {ASK_SECONDS:.0f} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Told(str(getattr(error, "strerror", None) or error) or type(error).__name__)


def _get(host: str, port: int, is_secure: bool, clock: Clock) -> Told:
    connection: http.client.HTTPConnection
    if is_secure:
        connection = http.client.HTTPSConnection(host, port, timeout=ASK_SECONDS, context=unverified())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        now_s = clock.wall_ms() / 1000
        body = answer.read(BODY_BYTES_MAX)
    finally:
        connection.close()
    ahead_s = parsedate_to_datetime(answer.headers["Date"] or "").timestamp() - now_s
    return Told(status=answer.status, body=body, ahead_s=ahead_s)
