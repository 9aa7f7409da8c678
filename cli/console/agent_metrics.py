"""The counters of agents' /metrics pages that the console draws.

Place: read by sampler.py once per sample; samples.py makes rates from two of them.
Invariant: a page is read up to PAGE_BYTES_MAX; an agent that does not answer is left out, and named.
"""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.cli.console.client_counters import Uses, client_uses
from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.config.shown import shown_address

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
