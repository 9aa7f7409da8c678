"""Random histories of a table's values: JSON with nulls, empty and absent parts at each depth is appended, files become
one, rows are deleted, and rows are merged by key.

Invariant checked: each row has what its value says, in whichever files it is: null and absent are null, empty is
empty, and no number is lost. The files are read by pyarrow, which knows no Iceberg.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions.parser import parse
from pyiceberg.table import Table

from headrace.tables.catalog import TableCatalog, view_of
from headrace.tables.commit.appending import Append, append, widen
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.keyed.merging import merge_group
from headrace.tables.keyed.opener import keyed_opener, value_opener
from headrace.tables.listing import TableAddress
from headrace.tables.rows import ARROW
from headrace.tables.state import Definition, Follows, TablePosition, definition_of, standing_of
from headrace.tables.upkeep.deleting import RowDeletion
from headrace.tables.upkeep.replacing import Replacer
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.fractions import SUFFIX

NAME = "orders"
NOW_MS = 1 << 50
WHOLE = {
    "items": [{"sku": "a", "count": 1, "marks": [{"by": "x"}]}],
    "tags": ["t"],
    "place": {"stops": [{"at": "b"}], "name": "c"},
    "amount": 1,
    "prices": [1],
    "deep": [[{"on": True}]],
}
"""The first value: it makes the columns."""


class ValueTable:
    """One table, in a separate catalog. `values`: as Definition has them; `is_keyed`: it has a row per key."""

    def __init__(self, folder: Path, *values: str, is_keyed: bool) -> None:
        self.is_keyed, self.next = is_keyed, 0
        folder.mkdir(parents=True, exist_ok=True)
        opened = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "warehouse").as_uri())
        self.catalog = TableCatalog(opened, "values")
        definition = Definition("c", NAME, uuid.uuid4(), "earliest", "", *values, is_keyed=is_keyed)
        self.catalog.create(NAME, definition, (), {})

    def load(self) -> Table:
        """Return the table."""
        return self.catalog.load(NAME)

    def address(self) -> TableAddress:
        """Return where readers find it."""
        return TableAddress("test", {}, f"values.{NAME}", self.load().metadata_location)

    def add(self, values: Sequence[bytes], keys: Sequence[bytes], headers: Sequence[Any]) -> None:
        """Append records, or merge them."""
        sent = []
        for value, key, each in zip(values, keys, headers, strict=True):
            at = {"timestamp": self.next, "partition": 0, "offset": self.next}
            sent.append({"key": key, "value": value, "headers": each} | at)
            self.next += 1
        raw = pa.Table.from_pylist(sent, schema=ARROW)
        while not self._commit(raw):
            pass

    def keep(self) -> None:
        """Make one file of all."""
        TableUpkeep(self.catalog, UpkeepTerms(files_min=2, snapshot_max_age_ms=1)).keep(NAME, NOW_MS)

    def delete(self, offset: int) -> None:
        """Delete a row."""
        RowDeletion(parse(f"kafka.offset == {offset}")).delete(Replacer(self.load, KnownManifests()))

    def _commit(self, raw: pa.Table) -> bool:
        table = self.load()
        standing = standing_of(view_of(table))
        before = standing.progress if isinstance(standing, Follows) else None
        definition = definition_of(table.properties)
        assert definition is not None
        positions = {0: TablePosition(self.next)}
        if self.is_keyed:
            opener = keyed_opener(definition, table.schema(), ValueFormats())
            changed = opener.open(raw)
            if changed.columns != opener.columns:
                return not widen(table, changed.columns)
            assert not changed.dead
            place, tasks = DataFilePlace.of(table), list(table.scan().plan_files())
            merged = merge_group(place, place.open(), ("kafka.key",), tasks, changed.changes)
            add = Append(None, positions, files=merged.files, removed=merged.removed)
        else:
            plain = value_opener(definition, table.schema(), ValueFormats())
            assert plain is not None
            opened = plain.open(raw)
            if opened.columns != plain.columns:
                return not widen(table, opened.columns)
            assert not opened.dead
            add = Append(opened.rows, positions)
        assert append(table, before, add).outcome is CommitOutcome.COMMITTED
        return True


class ValueHistory(ValueTable):
    """What happens to a table of JSON values."""

    def __init__(self, folder: Path, rng: random.Random, *, is_keyed: bool = False) -> None:
        super().__init__(folder, "json", is_keyed=is_keyed)
        self.rng = rng
        self.rows: dict[int, tuple[bytes, dict[str, Any], Any]] = {}
        """By offset: key, value, headers."""

    def tell(self, parts: int = 4) -> None:
        """Let it happen; AssertionError if a row is another than was sent."""
        self._append([WHOLE])
        for _ in range(parts):
            self._append([some_value(self.rng) for _ in range(self.rng.randint(1, 4))])
            match self.rng.randrange(3):
                case 0:
                    self.keep()
                case 1:
                    gone = self.rng.randrange(self.next)
                    self.delete(gone)
                    self.rows.pop(gone, None)
        self.check()

    def _append(self, values: list[dict[str, Any]]) -> None:
        headers = [self.rng.choice([None, [], [{"key": "h", "value": None}]]) for _ in values]
        first = self.next
        keys = [b"%d" % (self.rng.randrange(6) if self.is_keyed else first + n) for n in range(len(values))]
        self.add([json.dumps(value).encode() for value in values], keys, headers)
        for n, sent in enumerate(zip(keys, values, headers, strict=True)):
            self.rows = {at: row for at, row in self.rows.items() if row[0] != sent[0]} | {first + n: sent}

    def check(self) -> None:
        """Compare with what was sent."""
        found = {}
        for row in rows_of_files(self.load()):
            kafka = row.pop("kafka")
            assert kafka["offset"] not in found, "a row is there twice"
            found[kafka["offset"]] = kafka["key"], told(row), kafka["headers"]
        assert found == {offset: (key, told(value), headers) for offset, (key, value, headers) in self.rows.items()}


def some_value(rng: random.Random) -> dict[str, Any]:
    """Return a value with some of WHOLE's members."""
    return {
        name: each
        for name, each in {
            "items": _some_list(rng, lambda: _some_item(rng)),
            "tags": _some_list(rng, lambda: rng.choice(["a", "", None])),
            "place": rng.choice([None, {"stops": _some_list(rng, lambda: {"at": "d"})}, {"name": None}]),
            "amount": rng.choice([None, 0, (1 << 62) + 1, 0.5]),
            "prices": _some_list(rng, lambda: rng.choice([2, 2.5, None])),
            "deep": _some_list(rng, lambda: _some_list(rng, lambda: rng.choice([None, {"on": None}]))),
        }.items()
        if rng.random() < 0.8
    }


def _some_list(rng: random.Random, item: Any) -> Any:
    return rng.choice([None, [], [item()], [item(), item()]])


def _some_item(rng: random.Random) -> Any:
    return rng.choice(
        [None, {"sku": "b"}, {"count": 2.5}, {"sku": None, "count": 3, "marks": _some_list(rng, lambda: {"by": None})}]
    )


def rows_of_files(table: Table) -> list[dict[str, Any]]:
    """Return the rows of the table's files, as pyarrow reads them."""
    found: list[dict[str, Any]] = []
    for task in table.scan().plan_files():
        with table.io.new_input(task.file.file_path).open() as stream:
            found += pq.read_table(stream).to_pylist()
    return found


def told(value: Any) -> Any:
    """Return a row or its value without members that are null, and with fractions under their first name."""
    if isinstance(value, list):
        return [told(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name.removesuffix(SUFFIX): told(each) for name, each in value.items() if each is not None}
