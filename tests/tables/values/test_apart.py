"""Values are opened by processes that can be ended: a record that takes too much is given up, and no other one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from headrace.scan.errors import OptionError
from headrace.storage.errors import UnavailableError
from headrace.tables.errors import SchemaError
from headrace.tables.rows import ARROW, VALUED_SCHEMA
from headrace.tables.state import Definition, OffsetGap
from headrace.tables.values.apart.process import ApartOpener, Budget, OpeningPool
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import Cut

pytestmark = pytest.mark.requirement("X11")

LOOKS_BACK = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^(a+)+(?!b)$"}}}
"""RE2 has no look-around, so Python's `re` matches it, and goes back without an end."""
ENDLESS = json.dumps({"a": "a" * 40 + "!"}).encode()
FITS = b'{"a": "aaa"}'
SCHEMA = schema_to_pyarrow(VALUED_SCHEMA, include_field_ids=False)
WITH_A = SCHEMA.append(pa.field("a", pa.large_string()))
SHORT = Budget(record=0.3, chunk=20.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[OpeningPool]:
    pool = OpeningPool(size=1)
    yield pool
    pool.close()


def raw(*values: bytes | None, partition: int = 0) -> pa.Table:
    """Raw rows with these values."""
    count = len(values)
    columns = [
        pa.nulls(count, pa.binary()), pa.array(values, pa.binary()), pa.nulls(count, ARROW.field("headers").type),
        pa.array([0] * count, ARROW.field("timestamp").type), pa.array([partition] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=ARROW)


def definition(*values: str) -> Definition:
    return Definition("cluster", "orders", uuid.uuid4(), "earliest", "", *values)


def by_schema(pool: OpeningPool, budget: Budget = SHORT) -> ApartOpener:
    told = definition("json-schema", json.dumps(LOOKS_BACK))
    return ApartOpener(pool, "", told, WITH_A, budget)


def texts(rows: pa.Table) -> Sequence[str | None]:
    found: list[str | None] = rows.column("a").to_pylist()
    return found


def test_what_a_process_opens_is_what_the_worker_would_open(pool: OpeningPool) -> None:
    told = definition("json")
    values = (b'{"a": "x", "n": [1]}', None, b"no json", b'{"a": "y"}')
    apart = ApartOpener(pool, "", told, WITH_A)
    here = ValueFormats().opener(told, WITH_A)
    first, second = apart.open(raw(*values)), here.open(raw(*values))
    assert first == second
    assert first.columns != apart.columns == here.columns
    wide = pa.schema([SCHEMA.field(0), *first.columns])
    first = ApartOpener(pool, "", told, wide).open(raw(*values))
    assert first == ValueFormats().opener(told, wide).open(raw(*values))
    assert first.dead == (OffsetGap(0, 2, 3),)
    assert apart.reasons(raw(*values)) == here.reasons(raw(*values))


def test_a_record_that_takes_too_long_is_the_only_dead_letter(pool: OpeningPool) -> None:
    before, opener = pool.ended, by_schema(pool)
    chunk = raw(FITS, ENDLESS, FITS, None)
    opened = opener.open(chunk)
    assert texts(opened.rows) == ["aaa", "aaa", None]
    assert (opened.dead, opened.cuts, pool.ended) == ((OffsetGap(0, 1, 2),), {}, before + 1)
    assert opener.reasons(chunk) == ["", "opening the value takes too long", "", ""]
    assert opener.open(chunk).dead == opened.dead
    assert pool.ended == before + 1, "it is known"
    strict = replace(opener, definition=replace(opener.definition, tolerance="none"))
    assert list(strict.open(raw(FITS, ENDLESS)).cuts.values()) == [
        Cut(1, "partition 0, offset 1: opening the value takes too long")
    ]


def test_a_chunk_of_such_records_ends_and_the_next_one_begins(pool: OpeningPool) -> None:
    opener = by_schema(pool, budget=Budget(chunk=0.0))
    chunk = raw(FITS, ENDLESS, ENDLESS, FITS)
    pool.remember((opener._topic, 0, 1), "opening the value takes too long")
    opened = opener.open(chunk)
    assert (texts(opened.rows), opened.dead) == (["aaa"], ()), "no time is left after the first record"
    assert opened.cuts == {0: Cut(1)}
    opened = opener.open(chunk.slice(1))
    assert (opened.rows.num_rows, opened.dead, opened.cuts) == (0, (OffsetGap(0, 1, 2),), {0: Cut(2)})


def test_a_record_at_which_the_process_was_ended_by_others_is_tried_again(
    pool: OpeningPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.tables.values.apart.messages import EndedError

    ask, left = OpeningPool.ask, [1]

    def killed(self: OpeningPool, *args: object) -> object:
        if left[0]:
            left[0] -= 1
            raise EndedError(1, "status -9", is_certain=False)
        return ask(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(OpeningPool, "ask", killed)
    assert texts(by_schema(pool).open(raw(FITS, FITS)).rows) == ["aaa", "aaa"]
    left[0] = 2
    opened = by_schema(pool).open(raw(FITS, FITS))
    assert (texts(opened.rows), opened.dead) == (["aaa"], (OffsetGap(0, 1, 2),))


def test_errors_of_the_process_are_those_of_the_worker(pool: OpeningPool) -> None:
    with pytest.raises(SchemaError, match="not an Avro schema"):
        ApartOpener(pool, "", definition("avro", "{"), SCHEMA).open(raw(b""))
    with pytest.raises(OptionError, match="unknown value format"):
        ApartOpener(pool, "", definition("csv"), SCHEMA).open(raw(b""))
    closed = OpeningPool(size=1)
    closed.close()
    with pytest.raises(UnavailableError):
        ApartOpener(closed, "", definition("json"), SCHEMA).open(raw(b"1"))
