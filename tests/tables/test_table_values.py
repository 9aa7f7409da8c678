"""Values are in the table as they came, whichever way a row was written: nulls, empty and absent parts, numbers."""

from __future__ import annotations

import decimal
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headrace.tables.catalog import with_columns
from headrace.tables.commit import data_files
from headrace.tables.commit.data_files import projected
from headrace.tables.listing import duckdb_lines
from headrace.tables.values import columns as c
from headrace.tables.values import open as opening
from headrace.tables.values.fractions import Moved
from tests.planted import PlantedBugs, Trial
from tests.seeds import examples
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.registry import avro_bytes
from tests.tables.test_valued_tables import named, renamed
from tests.tables.value_history import ValueHistory, ValueTable, told
from tests.tables.values.test_value_columns import AVRO

pytestmark = pytest.mark.requirement("X11")


def histories(folder: Path, seeds: Iterable[int]) -> Iterator[ValueHistory]:
    """Every other one of a table with a row per key."""
    for seed in seeds:
        history = ValueHistory(folder / f"{seed}", random.Random(seed), is_keyed=bool(seed % 2))
        history.tell()
        yield history


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 60), marks=pytest.mark.slow)], ids=["few", "more"])
def test_each_row_has_what_its_value_says(tmp_path: Path, seeds: range) -> None:
    for history in histories(tmp_path, seeds):
        found = rows_by_duckdb(duckdb_lines(history.address())).to_pylist()
        by_offset = {row["kafka"]["offset"]: (row.pop("kafka")["headers"], told(row)) for row in found}
        assert by_offset == {at: (headers, told(value)) for at, (_, value, headers) in history.rows.items()}


@pytest.mark.parametrize("is_keyed", [False, True], ids=["append", "upsert"])
def test_each_column_type_keeps_null_and_empty(tmp_path: Path, is_keyed: bool) -> None:
    """By DuckDB, before and after its files are written again."""
    more = [("lists", nullable({"type": "array", "items": nullable(AVRO_LIST)}), [[], None, [None]]),
            ("map", nullable({"type": "map", "values": nullable(POINT_2)}), {"a": None, "b": {"x": None}})]  # fmt: skip
    types = [(renamed(kind, n), named(value, n)) for n, (_, kind, _, value, _) in enumerate(AVRO)]
    types += [(kind, value) for _, kind, value in more]
    fields = [{"name": f"f{n}", "type": nullable(kind)} for n, (kind, _) in enumerate(types)]
    schema = fastavro.parse_schema({"type": "record", "name": "Order", "fields": fields})
    whole = {f"f{n}": value for n, (_, value) in enumerate(types)}
    nothing = dict.fromkeys(whole)
    empty = nothing | {name: type(value)() for name, value in whole.items() if isinstance(value, (list, bytes, str))}
    empty |= {f"f{n}": {} for n, (name, *_) in enumerate(AVRO) if name == "map"} | {f"f{len(types) - 1}": {}}
    fixed = [f"f{n}" for n, (name, *_) in enumerate(AVRO) if name in ("fixed", "duration", "enum")]
    empty |= dict.fromkeys(fixed)
    table = ValueTable(tmp_path, "avro", json.dumps(schema), is_keyed=is_keyed)
    for key, value in ((b"a", whole), (b"b", nothing), (b"c", empty)):
        table.add([avro_bytes(schema, value)], [key], [None])
    before = by_key(table)
    assert all(each is None for name, each in before[b"b"].items() if name != "kafka")
    assert (before[b"c"][f"f{len(types) - 2}"], before[b"c"][f"f{len(types) - 1}"]) == ([], [])
    table.keep()
    assert by_key(table) == before
    table.add([avro_bytes(schema, whole)], [b"d"], [None])
    table.delete(3)
    assert by_key(table) == before


def nullable(kind: Any) -> Any:
    """Return the Avro schema of this type or null."""
    return (
        kind if isinstance(kind, list) and "null" in kind else ["null", *(kind if isinstance(kind, list) else [kind])]
    )


POINT_2 = {"type": "record", "name": "Point2", "fields": [{"name": "x", "type": ["null", "long"]}]}
AVRO_LIST = {"type": "array", "items": ["null", POINT_2 | {"name": "Point3"}]}


def by_key(table: ValueTable) -> dict[bytes, dict[str, Any]]:
    """Return the rows as DuckDB reads them."""
    return {row["kafka"]["key"]: row for row in rows_by_duckdb(duckdb_lines(table.address())).to_pylist()}


def _as_pyiceberg(batch: pa.RecordBatch, have: Schema, want: Schema, target: pa.Schema, constants: Any = None) -> Any:
    """Rows are turned by pyiceberg's own projection."""
    made = pyiceberg_arrow._to_requested_schema(want, have, batch, projected_missing_fields=constants or {})
    return made.cast(target)


def _without_moved(value: dict[str, Any], moves: Any) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in moves}


BUGS: dict[str, tuple[Any, str, Any]] = {
    "null lists become empty": (data_files, "projected", _as_pyiceberg),
    "fractions are dead letters": (opening, "with_fractions_apart", lambda have, shape: Moved(shape, None)),
    "fractions are left out": (
        opening,
        "moved",
        lambda value, moves: {k: v for k, v in value.items() if k not in moves},
    ),
}
PLANTED = PlantedBugs("values of iceberg tables", most=100)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial, tmp_path: Path) -> None:
    trial.plant(*BUGS[bug])
    for number, seed in enumerate(trial.seeds()):
        with trial.shown_by(AssertionError):
            list(histories(tmp_path / str(number), [seed]))


SIMPLE: dict[pa.DataType, list[Any]] = {
    c.LONG: [0, 1 << 62],
    c.STRING: ["", "x"],
    c.BOOLEAN: [True, False],
    pa.decimal128(20, 2): [decimal.Decimal("1.50")],
    pa.binary(2): [b"ab", b"cd"],
}


def struct(kinds: list[pa.DataType]) -> pa.DataType:
    return pa.struct([(f"f{n}", kind) for n, kind in enumerate(kinds)])


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, and nulls at each depth."""
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({each.name: values(each.type) for each in kind})
    if pa.types.is_map(kind):
        found = st.dictionaries(st.sampled_from("ab"), values(kind.item_type), max_size=2)
        return st.none() | found.map(lambda each: list(each.items()))
    if pa.types.is_large_list(kind):
        return st.none() | st.lists(values(kind.value_type), max_size=2)
    return st.none() | st.sampled_from(SIMPLE[kind])


KINDS = st.recursive(
    st.sampled_from(list(SIMPLE)),
    lambda inner: st.one_of(
        inner.map(c.list_of), inner.map(c.map_of), st.lists(inner, min_size=1, max_size=2).map(struct)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_rows_of_any_type_and_slice_stay_what_they_are(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    rows = data.draw(st.lists(values(kind), min_size=1, max_size=5))
    part = pa.RecordBatch.from_arrays([pa.array(rows, kind)], ["v"]).slice(data.draw(st.integers(0, len(rows) - 1)))
    schema = with_columns(Schema(), pa.struct([("v", kind)]))
    for with_ids in (False, True):
        target = schema_to_pyarrow(schema, include_field_ids=with_ids)
        made = projected(part, schema, schema, target)
        assert made.column(0).to_pylist() == part.column(0).to_pylist()
        assert made.schema.field(0).type == target.field(0).type
