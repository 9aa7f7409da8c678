"""Counters by user and client id of an agent's /metrics page, and the rates between two pages. Pure.

Place: under agent_metrics.py and samples.py; agent/access/quotas/client_traffic.py writes these lines.
Invariant: clients choose their ids, so a label may have any character: it is read as Prometheus' format escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Pair = tuple[str, str]
"""User and client id."""
OTHERS: Pair = ("", "")
"""The sum of all pairs without a separate label."""
OTHERS_SHOWN = "all others"
_LINE = re.compile(
    r"^headrace_client_(requests|received_bytes|received_records|sent_bytes)_total\{(.*)\} (\S+)$", re.MULTILINE
)
_LABEL = re.compile(r'(user|client_id)="((?:[^"\\]|\\.)*)"')
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
    for name, labels, value in _LINE.findall(page):
        named = {label: _unescaped(text) for label, text in _LABEL.findall(labels)}
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
