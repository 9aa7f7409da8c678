"""The counters of agents' /metrics pages that the console draws.

Place: read by sampler.py once per sample; samples.py makes rates from two of them.
agent/access/quotas/client_traffic.py writes the lines by user and client id.
Invariant of clients: clients choose their ids, so a label may have any character: it is read as Prometheus' format
escapes it.
Invariant: a page is read up to PAGE_BYTES_MAX; an agent that does not answer is left out, and named.
"""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.config.addresses import address_text, shown_address
from headrace.config.errors import ConfigError

Pair = tuple[str, str]
"""User and client id."""
OTHERS: Pair = ("", "")
"""The sum of all pairs without a separate label."""
OTHERS_SHOWN = "all others"
_CLIENT_LINE = re.compile(
    r"^headrace_client_(requests|received_bytes|received_records|sent_bytes)_total\{(.*)\} (\S+)$", re.MULTILINE
)
_CLIENT_LABEL = re.compile(r'(user|client_id)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class ClientUse(NamedTuple):
    """What a pair used: since it has its label, or per second."""

    requests: float = 0.0
    received_bytes: float = 0.0
    received_records: float = 0.0
    sent_bytes: float = 0.0

    @property
    def bytes_in_all(self) -> float:
        """Bytes of both directions."""
        return self.received_bytes + self.sent_bytes


Uses = Mapping[Pair, ClientUse]


def client_uses(page: str) -> dict[Pair, ClientUse]:
    """Parse the counters by client of a page in Prometheus' text format."""
    found: dict[Pair, dict[str, float]] = {}
    for name, labels, value in _CLIENT_LINE.findall(page):
        named = {label: _unescaped(text) for label, text in _CLIENT_LABEL.findall(labels)}
        found.setdefault((named.get("user", ""), named.get("client_id", "")), {})[name] = float(value)
    return {pair: ClientUse(**values) for pair, values in found.items()}


def client_rates(pages: Iterable[tuple[Uses, Uses]], seconds: float) -> dict[Pair, ClientUse]:
    """Return the uses per second of the later pages' pairs, the sum over agents; (earlier, later) page of each agent. A
    pair that the earlier one lacks got its label meanwhile, and began at 0.
    """
    found: dict[Pair, ClientUse] = {}
    for before, after in pages:
        for pair, use in after.items():
            earlier, sums = before.get(pair, ClientUse()), found.get(pair, ClientUse())
            grown = (new - old if new >= old else new for old, new in zip(earlier, use, strict=True))
            found[pair] = ClientUse(*(total + more / seconds for total, more in zip(sums, grown, strict=True)))
    return found


def heaviest_first(uses: Uses) -> list[tuple[Pair, ClientUse]]:
    """Sort by bytes, then by requests; the sum of the others comes last."""
    return sorted(uses.items(), key=lambda each: (each[0] == OTHERS, -each[1].bytes_in_all, -each[1].requests, each[0]))


def shown_pair(pair: Pair) -> Pair:
    """Return it as a table shows it."""
    return (OTHERS_SHOWN, "") if pair == OTHERS else pair


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


PAGE_BYTES_MAX = 16 * 1024 * 1024
PAGE_SECONDS = 3.0
ADDRESSES_MAX = 200
_LINE = re.compile(
    r"^headrace_(produce_bytes_total|fetch_bytes_total|produce_commit_seconds_bucket"
    r"|topic_received_bytes_total|topic_sent_bytes_total)(?:\{([^}]*)\})? (\S+)$",
    re.MULTILINE,
)
_LABEL = re.compile(r'="([^"]*)"')


@dataclass(frozen=True, slots=True)
class AgentCounters:
    """Counters of one agent since its start. Bytes, and the commits that took up to each number of seconds."""

    produced: float = 0.0
    fetched: float = 0.0
    commits: Mapping[float, float] = field(default_factory=dict)
    received_by_topic: Mapping[str, float] = field(default_factory=dict)
    sent_by_topic: Mapping[str, float] = field(default_factory=dict)
    by_client: Uses = field(default_factory=dict)
    """Use by user and client id; empty if the agent does not count by client."""


def parse_counters(page: str) -> AgentCounters:
    """Parse the counters of a page in Prometheus' text format; what it lacks counts as 0."""
    plain = {"produce_bytes_total": 0.0, "fetch_bytes_total": 0.0}
    labelled: dict[str, dict[str, float]] = {}
    for name, labels, value in _LINE.findall(page):
        if name in plain:
            plain[name] += float(value)
            continue
        if label := _LABEL.search(labels):
            labelled.setdefault(name, {})[label[1]] = float(value)
    return AgentCounters(
        plain["produce_bytes_total"],
        plain["fetch_bytes_total"],
        {float(edge): count for edge, count in labelled.get("produce_commit_seconds_bucket", {}).items()},
        labelled.get("topic_received_bytes_total", {}),
        labelled.get("topic_sent_bytes_total", {}),
        client_uses(page),
    )


class AgentPages:
    """The /metrics pages of the agents at these URLs; a host name with several addresses is several agents."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        """ConfigError for a URL that is not http or https."""
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ConfigError(f"--agent-http: not an http or https URL: {shown_address(url)}")
        self._urls = list(urls)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __bool__(self) -> bool:
        return bool(self._urls)

    def read(self) -> tuple[dict[str, AgentCounters], list[str]]:
        """Read the counters by address; and one line for each agent that did not answer."""
        found: dict[str, AgentCounters] = {}
        failures: list[str] = []
        for address in list(self._addresses(failures))[:ADDRESSES_MAX]:
            try:
                request = urllib.request.Request(f"{address}/metrics", headers=self._headers)
                with urllib.request.urlopen(request, timeout=PAGE_SECONDS) as answer:
                    found[address] = parse_counters(answer.read(PAGE_BYTES_MAX).decode(errors="replace"))
            except (OSError, ValueError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                failures.append(f"{address}: {reason}")
        return found, failures

    def _addresses(self, failures: list[str]) -> Iterator[str]:
        """Yield the addresses of a URL. Of https the name is kept, because its certificate is for the name."""
        for url in self._urls:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            if parts.scheme == "https":
                yield f"https://{parts.netloc}"
                continue
            try:
                found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
            except OSError as error:
                failures.append(f"{url}: {error.strerror}")
                continue
            for host in sorted({str(address[0]) for *_, address in found}):
                yield f"http://{address_text(host, port)}"
