"""Checks which record of a key is its row: by offset inside a partition, in any order of arrival."""

from __future__ import annotations

import datetime
import decimal
import random
import sys
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.tables.keyed import merging
from headrace.tables.keyed.merging import (
    DELETES,
    KEY,
    PLACE,
    changes_of,
    last_changes,
    replaced,
    rows_in,
)
from headrace.tables.layout import joined_keys
from tests.planted import PlantedBugs, Trial

pytestmark = pytest.mark.requirement("X11")


class Sent(NamedTuple):
    """A record. Keys are of one partition, as producers place them; times go back at times."""

    key: bytes
    partition: int
    offset: int
    timestamp: int
    value: int | None


def sent(rng: random.Random) -> list[Sent]:
    found = []
    for partition in range(2):
        for offset in range(rng.randint(0, 25)):
            key = b"%d-%d" % (partition, rng.randrange(6))
            value = None if rng.random() < 0.25 else rng.randrange(1_000)
            found.append(Sent(key, partition, offset, rng.randrange(10), value))
    return found


def changes(records: list[Sent]) -> pa.Table:
    columns: list[Any] = [list(each) for each in zip(*(record[:4] for record in records), strict=True)] or [[]] * 4
    place = pa.table([*columns, [record.value is None for record in records]], schema=PLACE)
    return changes_of(place, pa.table({"value": pa.array([record.value for record in records], pa.int64())}))


class OneFile:
    """A table with one file, kept by the functions as files.py keeps each of a group."""

    def __init__(self) -> None:
        self.rows = changes([])

    def merge(self, records: list[Sent]) -> None:
        last = last_changes(changes(records))
        goes = replaced(self.rows.column(KEY), last)
        is_put = ~last.column(DELETES).to_numpy()
        self.rows = pa.concat_tables([self.rows.filter(pa.array(~goes)), last.filter(pa.array(is_put))])

    def values(self) -> dict[bytes, int]:
        keys = self.rows.column(KEY).to_pylist()
        assert len(set(keys)) == len(keys), "a key has two rows"
        return dict(zip(keys, rows_in(self.rows).column("value").to_pylist(), strict=True))


def tell(seed: int) -> None:
    """Chunks in offset order, each in parts that come in any order, with some that come again."""
    rng = random.Random(seed)
    records = sent(rng)
    table, at, done = OneFile(), 0, [0, 0]
    by_partition = [[r for r in records if r.partition == p] for p in range(2)]
    while any(done[p] < len(by_partition[p]) for p in range(2)):
        chunk = []
        for p in range(2):
            end = min(len(by_partition[p]), done[p] + rng.randint(0, 8))
            begin = max(0, done[p] - rng.choice([0, 0, 5]))  # what was merged before comes again
            chunk += by_partition[p][begin:end]
            done[p] = end
        rng.shuffle(chunk)
        table.merge(chunk)
        expected: dict[bytes, int] = {}
        for record in (r for p in range(2) for r in by_partition[p][: done[p]]):
            expected.pop(record.key, None)
            if record.value is not None:
                expected[record.key] = record.value
        assert table.values() == expected, f"chunk {at}"
        at += 1


def test_the_rows_are_the_last_values_also_if_chunks_overlap() -> None:
    for seed in range(40):
        tell(seed)


def _last_by_time(rows: pa.Table) -> pa.Table:
    ordered = rows.append_column("#number", pa.array(np.arange(len(rows)))).sort_by([("#timestamp", "ascending")])
    return rows.take(merging._last_of_each(ordered, [KEY]).column("#number"))


def _markers_put(rows: pa.Table) -> pa.Table:
    """The last changes, as if none of them deleted."""
    last = _last_changes(rows)
    never = pa.chunked_array([pa.repeat(pa.scalar(False), len(last))])
    return last.set_column(last.column_names.index(DELETES), DELETES, never)


_last_changes = last_changes
BUGS: dict[str, tuple[str, Any]] = {
    "delete markers are rows": ("last_changes", _markers_put),
    "the time decides": ("last_changes", _last_by_time),
    "the order of arrival decides": ("last_changes", lambda rows: rows.take(merging._last_of_each(
        rows.select([KEY]).append_column("#number", pa.array(np.arange(len(rows)))), [KEY]).column("#number"))),
    "rows that are replaced stay": ("replaced", lambda keys, *_: np.zeros(len(keys), bool)),
}  # fmt: skip
PLANTED = PlantedBugs("rows by key", most=400)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    name, replacement = BUGS[bug]
    trial.plant(sys.modules[__name__], name, replacement)
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            tell(seed)


def test_of_a_key_in_two_partitions_the_later_time_wins_in_one_commit_and_the_later_commit_after_it() -> None:
    first = [Sent(b"k", 0, 5, 100, 1), Sent(b"k", 1, 2, 300, 2), Sent(b"k", 0, 6, 200, 3)]
    table = OneFile()
    table.merge(first)
    assert table.values() == {b"k": 2}
    table.merge([Sent(b"k", 0, 7, 50, 4)])
    assert table.values() == {b"k": 4}
    table.merge([Sent(b"k", 1, 3, 1, 5), Sent(b"k", 0, 8, 1, 6)])
    assert table.values() == {b"k": 5}, "with equal times, the higher partition"


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array(["a", "a:", "1:a"]), pa.array([":b", "b", "b"])],
        [pa.array([b"", b"1", b"11"], pa.large_binary()), pa.array([11, 1, 1])],
        [pa.array([datetime.date(2026, 1, day) for day in (1, 2, 3)])],
        [pa.array([decimal.Decimal(each) for each in ("1.10", "1.11", "11.00")], pa.decimal128(9, 2))],
        [pa.array([1, 2, 3], pa.timestamp("us", "UTC")), pa.array([True, True, False])],
    ],
)
def test_rows_have_one_key_only_if_all_their_columns_are_equal(columns: list[pa.Array]) -> None:
    keys = joined_keys([pa.chunked_array([each, each]) for each in columns]).to_pylist()
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3


def test_a_row_with_a_null_in_its_key_has_none() -> None:
    first, second = pa.chunked_array([["a", None, "c"]]), pa.chunked_array([[1, 2, None]])
    assert [key is None for key in joined_keys([first, second]).to_pylist()] == [False, True, True]
    assert joined_keys([first]).to_pylist() == [b"a", None, b"c"]
