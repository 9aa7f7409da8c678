"""Find where reset-offsets moves the committed offsets of a group.

Place: under `headrace groups reset-offsets` and the console's preview; reads the log's offsets and changes nothing.
Invariant: every new offset is inside its partition's log, as with Kafka's tool; the notes name each that was moved
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.client.offsets import EARLIEST, LATEST, TopicPartition, list_offsets
from headrace.storage.errors import InvalidError


class ResetTo(NamedTuple):
    """Exactly one is set; without any, the log start."""

    latest: bool = False
    time_ms: int | None = None
    """The first record at or after it."""
    offset: int | None = None
    shift: int | None = None
    """Distance from the committed offset; negative: back."""


class OffsetMoves(NamedTuple):
    """The new offset of each partition, and what the user should know about them."""

    offsets: dict[TopicPartition, int]
    notes: list[str]


def plan_reset(
    cluster: KafkaCluster, to: ResetTo, wanted: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> OffsetMoves:
    """InvalidError to shift a partition without a committed offset; other errors as `require`."""
    earliest = list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    latest = list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    if to.latest:
        return OffsetMoves(latest, [])
    if to.offset is not None:
        return _moved_inside(dict.fromkeys(wanted, to.offset), earliest, latest)
    if to.shift is not None:
        if lacking := [f"{topic}:{index}" for topic, index in wanted if (topic, index) not in committed]:
            raise InvalidError(f"no committed offset to shift: {', '.join(lacking)}")
        return _moved_inside({tp: committed[tp] + to.shift for tp in wanted}, earliest, latest)
    if to.time_ms is None:
        return OffsetMoves(earliest, [])
    found = list_offsets(cluster, dict.fromkeys(wanted, to.time_ms))
    notes = [
        f"{topic}:{index} has no record at or after this time: its new offset is the log end, {latest[topic, index]}"
        for (topic, index), offset in found.items()
        if offset < 0
    ]
    return OffsetMoves({tp: latest[tp] if offset < 0 else offset for tp, offset in found.items()}, notes)


def _moved_inside(
    wanted: Mapping[TopicPartition, int], earliest: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> OffsetMoves:
    offsets = {tp: min(max(offset, earliest[tp]), latest[tp]) for tp, offset in wanted.items()}
    return OffsetMoves(
        offsets,
        [
            f"offset {wanted[topic, index]} is outside {topic}:{index}"
            f" ({earliest[topic, index]}..{latest[topic, index]}): its new offset is {offset}"
            for (topic, index), offset in offsets.items()
            if offset != wanted[topic, index]
        ],
    )
