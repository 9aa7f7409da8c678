"""Judges agents from outside, by what their listeners answer.

Place: one part of the area cluster of `headrace doctor`: the addresses that agents advertise, and by HTTP their clocks
and whether they are ready. The metastore does not know where an agent's HTTP listener is: it is asked at http.port of
the settings, on the host that the agent advertises.
Invariant of addresses: reads only. Each address gets a request that any client may send: Metadata without topics, or
ApiVersions where a login comes first. No login is sent, and certificates are not verified, because nothing secret is
sent.
Invariant of HTTP: reads only: one GET of /readyz for each host. A host that does not answer there is not known, not
bad: by default the listener is for its own machine.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.metadata.v4.response import MetadataResponse

from headrace.agent.cluster.address_check import complaints
from headrace.cli.doctor.certificates import certificate_of, judge_certificate, unverified
from headrace.cli.doctor.findings import Area, Finding
from headrace.config.addresses import address_text
from headrace.config.settings import Settings
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.client.transport import exchange
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock, within
from headrace.storage.errors import CorruptError, InvalidError

AREA = Area("cluster")
CONNECT_SECONDS = 3.0
ENCRYPTED, ASKS_FOR_LOGIN = (1, 3), (2, 3)
"""Numbers of security protocols: SSL and SASL_SSL; SASL_PLAINTEXT and SASL_SSL."""
CLIENT_ID = "headrace-doctor"
TO_DO = "set advertised.listeners to an address that clients reach; run the doctor where they run"


class _SilentError(CorruptError):
    """A connection was made, and nothing came over it."""


class Advertised(NamedTuple):
    """One address of an agent, and what is wrong with it; `reason` is empty if nothing is."""

    node_id: int
    listener: Listener
    reason: str = ""

    @property
    def text(self) -> str:
        """The address as in advertised.listeners."""
        return f"{self.listener.name}://{address_text(self.listener.host, self.listener.port)}"


async def examine_addresses(
    image: MetadataImage, settings: Settings, cluster_id: str, in_force: Settings, clock: Clock
) -> list[Finding]:
    """Every finding about the addresses of live agents."""
    live = image.live_agents()
    advertised = [Advertised(agent.node_id, listener) for agent in live for listener in agent.listeners]
    reasons = await asyncio.gather(*(why_wrong(each.listener, cluster_id, clock) for each in advertised))
    judged = [each._replace(reason=reason) for each, reason in zip(advertised, reasons, strict=True)]
    found = [*judge_addresses(judged), *judge_together(live, settings, in_force)]
    encrypted = [each for each in judged if each.listener.security_protocol in ENCRYPTED and not each.reason]
    shown = await asyncio.gather(*(certificate_of(each.listener.host, each.listener.port, clock) for each in encrypted))
    for each, dates in zip(encrypted, shown, strict=True):
        whose = f"agent {each.node_id} at {each.text}"
        found.append(judge_certificate(AREA, whose, dates or "it has none", clock.wall_ms()))
    return found


def judge_addresses(advertised: list[Advertised]) -> Iterator[Finding]:
    """One line for each address that is wrong; one for all if none is."""
    for each in advertised:
        if each.reason:
            yield AREA.bad("addresses", f"agent {each.node_id} advertises {each.text}: {each.reason}", TO_DO)
    if advertised and not any(each.reason for each in advertised):
        found = f"all {len(advertised)} advertised addresses are reached from here, and are of this cluster"
        yield AREA.ok("addresses", found)


def judge_together(live: list[AgentImage], settings: Settings, in_force: Settings) -> Iterator[Finding]:
    """Yield what is wrong with the addresses of each agent next to those of the others.

    `settings`: those of this command. `in_force`: with the values that apply in the cluster.
    """
    for agent in live:
        others = [other for other in live if other is not agent]
        found = complaints(agent, others, settings.inter_broker_listener_name, is_shared=in_force.advertised_shared)
        for complaint in found:
            yield AREA.warn("addresses", f"agent {agent.node_id}: {complaint}", "correct its advertised.listeners")


async def why_wrong(listener: Listener, cluster_id: str, clock: Clock) -> str:
    """Empty if an agent of the cluster answers, or if what answers asks for a login or a certificate first."""
    try:
        other = await within(clock, 3 * CONNECT_SECONDS, asyncio.to_thread(_cluster_at, listener))
    except (TimeoutError, ssl.SSLError, CorruptError, InvalidError, OSError) as error:
        return _in_words(error)
    return f"reached, and it belongs to another cluster: {other}" if other not in (None, cluster_id) else ""


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {CONNECT_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLError):
        if "CERTIFICATE_REQUIRED" in str(error).upper().replace(" ", "_"):
            return ""
        return f"reached, and it does not speak TLS: {error.reason or error}"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return f"reached, and it closed the connection at a Kafka request: {error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, _SilentError):
        return f"reached, and no Kafka request was answered in {CONNECT_SECONDS:g} s: no agent, or its process hangs"
    return f"reached, and it does not speak Kafka: {error}"


def _cluster_at(listener: Listener) -> str | None:
    """Return the cluster id of what answers there; None if it says none before a login. Errors of the connection, and
    of `exchange`.
    """
    with socket.create_connection((listener.host, listener.port), CONNECT_SECONDS) as plain:
        try:
            if listener.security_protocol not in ENCRYPTED:
                return _ask_listener(plain, listener)
            with unverified().wrap_socket(plain, server_hostname=listener.host) as secure:
                return _ask_listener(secure, listener)
        except TimeoutError:
            raise _SilentError from None


def _ask_listener(connection: socket.socket, listener: Listener) -> str | None:
    if listener.security_protocol in ASKS_FOR_LOGIN:
        exchange(connection, CLIENT_ID, ApiVersionsRequest(), ApiVersionsResponse)
        return None
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    answer = exchange(connection, CLIENT_ID, request, MetadataResponse)
    return None if answer.cluster_id is None else str(answer.cluster_id)


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
