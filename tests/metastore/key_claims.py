"""What the commit hears of the keys in a batch, for tests of its rules for partitions that split and merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.metastore.api.commit import NO_ALIAS, MovedKeys


class Said(NamedTuple):
    """What a batch's client or agent says of the keys in it; as in StagedBatch."""

    partition_count: int = -1
    keys: int = MovedKeys.UNKNOWN
    alias: int = NO_ALIAS


def columns(said: Sequence[Said]) -> tuple[list[int], list[int], list[int]]:
    """By batch: counts, keys and aliases, as commit_files gets them."""
    return [one.partition_count for one in said], [one.keys for one in said], [one.alias for one in said]


NOTHING, STAY, MOVED = Said(), Said(keys=MovedKeys.STAY), Said(keys=MovedKeys.MOVED)
