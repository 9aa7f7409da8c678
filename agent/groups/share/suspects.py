"""Decide how many records one delivery of a share group may have: fewer, the more attempts of them have failed.

Place: pure policy under share_partition.py.
Invariant: a record in its last attempt is delivered alone, so that a record that makes its member fail uses up the
attempts of no other one. Suspects are never in one delivery with other records.
The rule looks at stored attempts only, so it holds under the next owner, and however an attempt ended.
Source: Kafka 4.3's SharePartition, which shrinks the deliveries of a batch in the same way.
"""

from __future__ import annotations

SUSPECT_ATTEMPTS_MIN = 2
"""After fewer failed attempts, records are never suspects."""


def are_suspects(tries: int, attempts: int) -> bool:
    """Return whether records that failed `tries` times, of at most `attempts`, are delivered apart from others."""
    return attempts > SUSPECT_ATTEMPTS_MIN and tries >= _suspect_from(attempts)


def delivery_records(tries: int, batch: int, attempts: int) -> int:
    """Return how many suspects one delivery may have, at least 1: half of the `batch` records that they were delivered
    with first, a quarter in the next attempt, ..., one in the last.
    """
    if tries >= attempts - 1:
        return 1
    return max(batch >> (tries - _suspect_from(attempts) + 1), 1)


def _suspect_from(attempts: int) -> int:
    return max(SUSPECT_ATTEMPTS_MIN, (attempts + 1) // 2)
