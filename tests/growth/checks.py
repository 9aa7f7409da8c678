"""What must hold of the events of a run: order per key, and the callbacks of KIP-253 in their order. Pure.

Place: applied by ordered_run.py's users to its list of events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[str, int]


class Delivered(NamedTuple):
    """`number` counts the records of a key, from 1."""

    member: str
    partition: Partition
    key: bytes
    number: int


class MaybeRevoked(NamedTuple):
    """The callback for one partition."""

    member: str
    partition: Partition


class KeyAssigned(NamedTuple):
    """The callback for one partition."""

    member: str
    partition: Partition


Event = Delivered | MaybeRevoked | KeyAssigned


class OrderReport(NamedTuple):
    """`moves`: how often a key's next record came from another partition. The lists are empty after a good run."""

    records: int
    moves: int
    out_of_order: list[Delivered]
    without_callbacks: list[Delivered]
    missing: dict[bytes, int]


def check_events(events: Sequence[Event], sent: Mapping[bytes, int]) -> OrderReport:
    """`sent`: how many records of each key are stored."""
    last: dict[bytes, tuple[int, Delivered]] = {}
    revoked: defaultdict[Partition, list[int]] = defaultdict(list)
    assigned: defaultdict[Partition, list[int]] = defaultdict(list)
    out_of_order, without_callbacks, moves = [], [], 0
    for at, event in enumerate(events):
        if isinstance(event, MaybeRevoked):
            revoked[event.partition].append(at)
        elif isinstance(event, KeyAssigned):
            assigned[event.partition].append(at)
        else:
            before, earlier = last.get(event.key, (-1, None))
            if event.number != (earlier.number if earlier else 0) + 1:
                out_of_order.append(event)
            if earlier is not None and earlier.partition != event.partition:
                moves += 1
                if not _in_order(before, revoked[earlier.partition], assigned[event.partition]):
                    without_callbacks.append(event)
            last[event.key] = at, event
    missing = {key: count for key, count in sent.items() if count != (last[key][1].number if key in last else 0)}
    records = sum(isinstance(event, Delivered) for event in events)
    return OrderReport(records, moves, out_of_order, without_callbacks, missing)


def _in_order(delivered: int, revoked: Iterable[int], assigned: Sequence[int]) -> bool:
    """Return whether onPartitionKeyMaybeRevoked of the one came after the delivery, and then onPartitionKeyAssigned of
    the other.
    """
    first = next((at for at in revoked if at > delivered), None)
    return first is not None and bool(assigned) and assigned[-1] > first
