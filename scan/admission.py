"""How much a micro-batch of a stream reads. Pure.

Place: under Spark's stream reader, between the newest offsets and the end of a batch.
Invariant: an end is never behind the newest offset or before its start; with a limit every partition with something new
moves on.
Source: rate limits of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import TypeVar

P = TypeVar("P")


def new_offsets(start: Mapping[P, int], latest: Mapping[P, int]) -> int:
    """The number of offsets from `start` (0 for a partition that is not in it) to `latest`."""
    return sum(max(0, end - start.get(partition, 0)) for partition, end in latest.items())


def share(start: Mapping[P, int], latest: Mapping[P, int], limit: int) -> dict[P, int]:
    """Ends for about `limit` offsets, in proportion to what each partition has; one for the smallest ones."""
    total = new_offsets(start, latest)
    if total <= limit:
        return dict(latest)
    ends = {}
    for partition, end in latest.items():
        begin = start.get(partition, 0)
        part = limit * (end - begin) / total
        ends[partition] = end if end <= begin else min(end, begin + (ceil(part) if part < 1 else floor(part)))
    return ends
