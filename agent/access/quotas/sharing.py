"""What agents tell each other about shared limits, and which share of a limit follows from it. Pure.

Place: between the buckets and the exchange with other agents (exchange.py).
Invariant: an agent reports totals, so a lost or repeated report changes nothing. A bucket that was dropped and
made again begins at 0, under another generation. A silent agent has no share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.agent.access.quotas.limits import BucketKey

ENTRIES_MAX = 1_000
"""Limits in one report: those that were used most."""
REPORT_CHARACTERS = 256 * 1024
"""Largest number of characters of one report: a client id may have 32,767 bytes. Limits that do not fit are left
out.
"""
_FORGET_SECONDS = 60.0
_LEAST_SHARE = 0.01


class Use(NamedTuple):
    """One limit at one agent: what it used since the generation began, and whether clients wait for it."""

    generation: int
    used: float
    is_throttled: bool


Report = Mapping[BucketKey, Use]


class OthersUse(NamedTuple):
    """Use of one limit by all other agents since the last report.

    `unthrottled` is the part of `used` by agents that throttle no client. `throttled_agents` counts the others.
    """

    used: float
    unthrottled: float
    throttled_agents: int


NO_USE = OthersUse(0.0, 0.0, 0)


def encode_report(report: Report) -> str:
    """Encode a report as JSON: a list per limit."""
    most = sorted(report.items(), key=lambda entry: -entry[1].used)[:ENTRIES_MAX]
    entries, left = [], REPORT_CHARACTERS
    for key, use in most:
        entry = json.dumps([*key, *use])
        if len(entry) < left:
            left -= len(entry) + len(", ")
            entries.append(entry)
    return f"[{', '.join(entries)}]"


def decode_report(text: str) -> dict[BucketKey, Use]:
    """Return what `encode_report` wrote, also a newer one that has more fields."""
    return {BucketKey(*entry[:3]): Use(*entry[3:6]) for entry in json.loads(text)}


class Neighbours:
    """What other agents reported so far."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, BucketKey], tuple[Use, float]] = {}
        self._known: set[int] = set()

    def heard(self, reports: Mapping[int, Report], now: float) -> dict[BucketKey, OthersUse]:
        """Return what they used since the last call, from all their newest reports. The first report of an agent
        counts as 0: it does not say since when.
        """
        found: dict[BucketKey, list[tuple[float, bool]]] = {}
        for node_id, report in reports.items():
            for key, use in report.items():
                used = self._since_last(node_id, key, use)
                self._last[node_id, key] = (use, now)
                if used or use.is_throttled:
                    found.setdefault(key, []).append((used, use.is_throttled))
        self._known = set(reports)
        for entry in [entry for entry, (_, at) in self._last.items() if now - at > _FORGET_SECONDS]:
            del self._last[entry]
        return {key: _sum(uses) for key, uses in found.items()}

    def _since_last(self, node_id: int, key: BucketKey, use: Use) -> float:
        before = self._last.get((node_id, key))
        if before is None:
            return use.used if node_id in self._known else 0.0
        return use.used - before[0].used if before[0].generation == use.generation else use.used


def own_share(rate: float, others: OthersUse, seconds: float) -> float:
    """This agent's share of the rate: agents at which clients wait split equally what the others leave."""
    free = rate - others.unthrottled / seconds if seconds > 0 else rate
    return max(free, rate * _LEAST_SHARE) / (1 + others.throttled_agents)


def _sum(uses: Iterable[tuple[float, bool]]) -> OthersUse:
    used = unthrottled = 0.0
    throttled = 0
    for amount, is_throttled in uses:
        used += amount
        throttled += is_throttled
        unthrottled += 0.0 if is_throttled else amount
    return OthersUse(used, unthrottled, throttled)
