"""Odd records that agents accept: times that no calendar has, header names that are not UTF-8, partition values that
are too long for a path. Each is a row or a dead letter, and the next records are appended.
"""

from __future__ import annotations

import datetime
import struct

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.table import Table, Transaction

from headrace.storage.records.codec import Record, encode_batch, open_batch, read_with_any_names
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import CRC_START, batch_crc
from headrace.tables.commit import committing
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.file_names import SEGMENT_BYTES_MAX, shortened
from headrace.tables.looking import Condition
from headrace.tables.state import PAUSED
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.test_valued_tables import batch
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")

YEAR_0, YEAR_10000 = -62135596800001, 253402300800000
FIRST = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC)


def with_names(records: list[Record], codec: Codec = Codec.NONE) -> bytes:
    """A batch in which each header name `ZZZZ` has bytes that are not UTF-8."""
    made = bytearray(encode_batch(records, base_offset=0, codec=codec))
    while (at := made.find(b"ZZZZ")) >= 0:
        made[at : at + 4] = b"a\xff\xfeb"
    struct.pack_into(">I", made, CRC_START - 4, batch_crc(memoryview(made)))
    return bytes(made)


async def test_times_of_no_calendar_are_the_closest_that_have_one(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", layout=["day"])
    times = [YEAR_0, -(2**62), YEAR_10000, 2**62, -1, TIME_MS]
    await world.commit((key, encode_batch([Record(n, ms, None, b"v") for n, ms in enumerate(times)], base_offset=0)))
    assert (await tables.follow()).condition is Condition.FOLLOWING
    rows = sorted(tables.load().scan().to_arrow().to_pylist(), key=lambda row: row["offset"])
    assert [row["timestamp"] for row in rows[:4]] == [FIRST, FIRST, LAST, LAST]
    assert [row["timestamp"].timestamp() * 1_000 for row in rows[4:]] == [-1, TIME_MS]


async def test_header_names_that_are_not_utf_8_are_shown_as_java_shows_them(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await world.commit((key, with_names([Record(0, TIME_MS, b"k", b"v", [("ZZZZ", b"x"), ("ok", None)])])))
    await world.commit((key, batch({"n": 1})))
    await tables.follow()
    rows = tables.rows()
    assert [row.headers for row in rows] == [(("a\ufffd\ufffdb", b"x"), ("ok", None)), ()]


def test_the_reader_of_any_name_reads_what_the_codec_reads() -> None:
    records = [
        Record(n * 3, TIME_MS - n * 7, None if n % 3 else b"k" * n, None if n == 2 else b"v" * (n * 40),
               [("h", None), ("", b"x" * n)] if n % 2 else [])
        for n in range(20)
    ]  # fmt: skip
    for codec, more in (
        (Codec.NONE, {}),
        (Codec.ZSTD, {"log_append_time": True}),
        (Codec.NONE, {"delete_horizon_ms": 5}),
    ):
        opened = open_batch(memoryview(encode_batch(records, base_offset=0, codec=codec, **more)))  # type: ignore[arg-type]
        found = read_with_any_names(opened._opened, opened._header)
        assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found] == [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in opened
        ]


async def test_a_partition_value_of_any_length_is_a_row(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",), layout=["identity(city)"])
    cities = ["Berlin", "x" * 300, "Ж" * 50, "x" * 299 + "y", "\U0001f600" * 300, ""]
    await world.commit((key, batch(*({"city": city} for city in cities))))
    await tables.follow()
    assert [row["city"] for row in tables.found()] == cities
    assert [place["city"] for _, place in sorted(tables.placed().items())] == cities
    assert len(tables.files()) == len(cities)
    await world.commit((key, batch({"city": "Rome"})))
    await tables.follow()
    assert len(tables.found()) == len(cities) + 1


def test_a_short_path_is_as_it_was_and_long_ones_differ() -> None:
    assert shortened("city=Berlin", 60) == "city=Berlin"
    long = [shortened("city=" + "%D0%96" * 50 + end, SEGMENT_BYTES_MAX) for end in ("", "a", "b")]
    assert len(set(long)) == 3
    assert all(len(each) <= SEGMENT_BYTES_MAX and "%D0%~" not in each for each in long)


async def test_a_dead_letter_with_odd_time_and_names_is_kept(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",))
    await world.commit((key, with_names([Record(0, YEAR_0, b"k", b"no json", [("ZZZZ", b"x")])])))
    await world.commit((key, batch({"n": 1}, {"t": 2})))
    await tables.follow()
    assert [(offset, value) for _, offset, value, _ in tables.dead()] == [(0, b"no json")]
    assert len(tables.found()) == 2


async def test_an_unknown_exception_while_a_change_is_built_pauses_the_table(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never means that the catalog is away: the same rows fail again."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.commit((key, batch({"n": 1})))

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug of a library")

    with monkeypatch.context() as patched:
        patched.setattr(committing.BuiltFiles, "new_output", fails)
        patched.setattr(committing.WrittenFiles, "new_output", fails)
        done = await tables.round()
    assert done.condition is Condition.PAUSED
    assert "a bug of a library" in done.reason
    tables.catalog.set_property("orders", PAUSED, "")
    commit, left = Transaction.commit_transaction, [1]

    def fails_once(change: Transaction) -> Table:
        if left:
            left.pop()
            raise ZeroDivisionError("a bug before the catalog is called")
        return commit(change)

    monkeypatch.setattr(Transaction, "commit_transaction", fails_once)
    done = await tables.round()
    assert (done.condition, "cannot be committed" in done.reason) == (Condition.PAUSED, True)
    tables.catalog.set_property("orders", PAUSED, "")
    assert (await tables.follow()).condition is Condition.FOLLOWING
    await tables.check()


async def test_a_catalog_that_fails_in_its_call_may_have_committed(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.commit((key, batch({"n": 1})))
    tables.failing.next_failure = "lost"
    assert (await tables.round()).outcome is CommitOutcome.UNKNOWN
    assert (await tables.follow()).condition is Condition.FOLLOWING
    await tables.check()
