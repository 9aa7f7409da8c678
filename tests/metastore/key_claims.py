"""What the commit hears of the keys in a batch, and its rules for partitions that split and merge, asked in SQL."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import psycopg

from headrace.metastore.api.commit import NO_ALIAS, BatchOutcome, MovedKeys

PARENT, CHILD, OTHER = 9 << 24, 9 << 24 | 4, 9 << 24 | 1
Connection = psycopg.Connection[tuple[Any, ...]]


class Said(NamedTuple):
    """What a batch's client or agent says of the keys in it; as in StagedBatch."""

    partition_count: int = -1
    keys: int = MovedKeys.UNKNOWN
    alias: int = NO_ALIAS


def columns(said: Sequence[Said]) -> tuple[list[int], list[int], list[int]]:
    """By batch: counts, keys and aliases, as commit_files gets them."""
    return [one.partition_count for one in said], [one.keys for one in said], [one.alias for one in said]


NOTHING, STAY, MOVED = Said(), Said(keys=MovedKeys.STAY), Said(keys=MovedKeys.MOVED)


class Rule(Protocol):
    """The two questions that the rule for a split, or for a merge, answers."""

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> Any: ...

    def to_child(self, producer_id: int, now_ms: int) -> Any: ...


class SqlRule:
    """The same of the functions in the database. Producer 0 has no id."""

    def __init__(self, database: Connection) -> None:
        self._database = database

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> BatchOutcome:
        return self.commit(PARENT, producer_id, MOVED if has_moved_key else STAY, now_ms)

    def to_child(self, producer_id: int, now_ms: int) -> BatchOutcome:
        return self.commit(CHILD, producer_id, NOTHING, now_ms)

    def commit(
        self, key: int, producer_id: int, said: Said, now_ms: int, *, accepted: bool | None = None
    ) -> BatchOutcome:
        """One batch; `accepted`: what becomes of it, if not what the rule says."""
        raise NotImplementedError


def ask_both(rng: random.Random, rule: Rule, sql: SqlRule, producer_id: int, now_ms: int) -> tuple[Any, BatchOutcome]:
    """Return both answers to a batch for the child, or for the parent with or without a key that moved."""
    kind = rng.randrange(3)
    if kind == 2:
        return rule.to_child(producer_id, now_ms), sql.to_child(producer_id, now_ms)
    return rule.to_parent(producer_id, kind == 1, now_ms), sql.to_parent(producer_id, kind == 1, now_ms)
