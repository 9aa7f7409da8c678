"""JSON values of `headrace export`: the row of each offset has the value of its record, for every kind of value."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scan.errors import OptionError
from headrace.scan.export import values as export_values
from headrace.scan.export.values import JSON_TEXT, infer_schema, schema_of, schema_text, with_values
from tests.seeds import examples

NUMBERS = st.integers(-(10**40), 10**40) | st.sampled_from([1, 2**53 + 1, 2**63, -(2**63) - 1, 1.5, -0.0, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.just("2020-01-01T10:00:00+05:00")
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", ""]), inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b"]), JSON, max_size=2)
WELL_FORMED = st.builds(lambda value, ascii: json.dumps(value, ensure_ascii=ascii).encode(), OBJECTS, st.booleans())
NO_OBJECTS = [
    b"",
    b" ",
    b"null",
    b"[]",
    b'{"a":1',
    b"}",
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'\xef\xbb\xbf{"a":1}',
]
LOSSY = [b'{"a":NaN}', b'{"a":1e999}', b'{"a":1,"a":2}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b'{"a":' + b"[" * 5_000]
OTHERS = st.sampled_from(NO_OBJECTS + LOSSY)


def table(values: list[bytes | None]) -> pa.Table:
    count = len(values)
    return pa.table(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def means(cell: Any, value: Any, column: pa.Field) -> bool:
    """Return whether a cell is this value: a field that is missing is null, and JSON text is compared by what it
    says.
    """
    if value is None or cell is None:
        return value is None and cell is None
    if column.metadata is not None and column.metadata.items() >= JSON_TEXT.items():
        return repr(json.loads(cell)) == repr(value)
    if isinstance(value, dict):
        columns = {field.name: field for field in column.type}
        return value.keys() <= columns.keys() and all(
            means(cell[name], value.get(name), field) for name, field in columns.items()
        )
    if isinstance(value, list):
        return len(cell) == len(value) and all(map(means, cell, value, [column.type.value_field] * len(value)))
    if isinstance(value, float):
        return cell == value and math.copysign(1, cell) == math.copysign(1, value)
    return isinstance(cell, bool) == isinstance(value, bool) and cell == value


def check(sample: list[bytes | None], later: list[bytes | None]) -> None:
    """Every row is its record, or the first value that has no row is named."""
    schema = infer_schema(table(sample))
    if schema is None:
        return
    schema = schema_of(schema_text(schema))
    with_values(table(sample), schema)  # what the schema was inferred from fits
    values = [*sample, *later]
    try:
        cells = with_values(table(values), schema).column("value").to_pylist()
    except OptionError as error:
        (offset,) = [int(word[7:-1]) for word in str(error).split() if word.startswith("offset=")]
        with_values(table(values[:offset]), schema)
        with pytest.raises(OptionError):
            with_values(table(values[offset : offset + 1]), schema)
        return
    whole = pa.field("value", pa.struct(list(schema)))
    for value, cell in zip(values, cells, strict=True):
        assert means(cell, None if value is None else json.loads(value), whole)


@settings(max_examples=examples(60))
@given(
    st.lists(st.none() | WELL_FORMED, min_size=1, max_size=4), st.lists(st.none() | WELL_FORMED | OTHERS, max_size=4)
)
def test_the_row_of_an_offset_is_its_record(sample: list[bytes | None], later: list[bytes | None]) -> None:
    check(sample, later)


def test_a_large_integer_next_to_a_fraction_is_a_number() -> None:
    check([b'{"a": [9007199254740994, 1.5]}'], [b'{"a": [18014398509481984]}'])


def test_a_value_that_is_parsed_with_the_next_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: of a value with two objects the first is taken."""
    monkeypatch.setattr(export_values, "parse_object", lambda value: json.JSONDecoder().raw_decode(value.decode())[0])
    with pytest.raises(ValueError, match="Extra data"):
        check([b'{"a":1}'], [b'{"a":1}{"a":2}'])


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([b'{"a":1}', b'{"a":-9223372036854775808}'], pa.int64()),
        ([b'{"a":1}', b'{"a":9223372036854775808}'], pa.decimal128(38, 0)),
        ([b'{"a":1}', b'{"a":1.5}'], pa.float64()),
        ([b'{"a":9007199254740993}', b'{"a":1.5}'], pa.string()),
        ([b'{"a":1%s}' % (b"0" * 38)], pa.string()),
        ([b'{"a":"2020-01-01"}'], pa.string()),
        ([b'{"a":null}', b'{"a":{}}'], pa.string()),
    ],
)
def test_a_column_holds_its_sample_without_loss(values: list[bytes | None], type_: pa.DataType) -> None:
    schema = infer_schema(table(values))
    assert schema is not None
    assert schema.field("a").type == type_
    check(values, [])


def test_fields_that_are_null_in_the_sample_take_any_value_later() -> None:
    schema = infer_schema(table([b'{"a":null,"b":[]}']))
    later = table([b'{"a":5,"b":["x"]}', b'{"a":{"z":"\\u00e9"},"b":[{"y":1}]}', b'{"b":[null]}'])
    assert with_values(later, schema).column("value").to_pylist() == [
        {"a": "5", "b": ['"x"']},
        {"a": '{"z":"é"}', "b": ['{"y":1}']},
        {"a": None, "b": [None]},
    ]


@pytest.mark.parametrize("value", [b'{"a":9223372036854775808}', b'{"a":1.0}', b'{"a":true}', b'{"b":1}', b'{"a":[1]}'])
def test_what_a_column_would_have_to_change_is_refused(value: bytes) -> None:
    schema = infer_schema(table([b'{"a":1}']))
    with pytest.raises(OptionError, match="does not fit the inferred schema: topic=t partition=0 offset=1: "):
        with_values(table([None, value]), schema)


def test_a_schema_with_times_of_an_earlier_release_still_reads_them() -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("s")), pa.field("gone", pa.null())])
    (row,) = with_values(table([b'{"at":"2020-01-01 10:00:00","gone":null}']), schema).column("value").to_pylist()
    assert row["at"].isoformat() == "2020-01-01T10:00:00"
    assert row["gone"] is None
    with pytest.raises(OptionError, match="at: "):
        with_values(table([b'{"at":"soon"}']), schema)


def test_without_a_field_there_is_no_schema() -> None:
    assert infer_schema(table([None, b"{}"])) is None
    with pytest.raises(OptionError, match="a value is not a JSON object: topic=t partition=0 offset=1: "):
        infer_schema(table([None, uuid.UUID(int=0).bytes]))
