"""What a target's processes counted, from their /metrics.

Place: read by run.py before and after each run.
Invariant: only counters are taken, so the difference of two readings is what happened in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from headrace.cli.bench.http_access import OPEN, HttpAccess

SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)

FLUSHES, COMMITS = "headrace_produce_flushes_total", "headrace_produce_commit_seconds_count"


class StoreCounts(msgspec.Struct, frozen=True):
    """Requests to the object store (agents and compactors), buffers flushed, commit calls answered."""

    puts: int = 0
    gets: int = 0
    flushes: int = 0
    commits: int = 0

    def since(self, before: StoreCounts) -> StoreCounts:
        """Return what happened between two readings."""
        return StoreCounts(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))


def parse_counts(pages: Iterable[str]) -> StoreCounts:
    """Parse the counts from the text of /metrics of several processes."""
    sums: Counter[str] = Counter()
    for page in pages:
        for sample in SAMPLE.finditer(page):
            name, labels, value = sample["name"], sample["labels"] or "", float(sample["value"])
            if name == "headrace_store_requests_total":
                for operation in ("put", "get"):
                    if f'operation="{operation}"' in labels:
                        sums[operation] += round(value)
            elif name in (FLUSHES, COMMITS):
                sums[name] += round(value)
    return StoreCounts(sums["put"], sums["get"], sums[FLUSHES], sums[COMMITS])


def read_counts(addresses: Iterable[str], access: HttpAccess = OPEN) -> StoreCounts:
    """Read the counts from each process at host:port; UnavailableError if one does not answer."""
    return parse_counts(access.page(address, "/metrics") for address in addresses)
