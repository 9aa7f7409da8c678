"""`headrace export`: every record in exactly one file, also if it is killed at any step and continues later."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

from pyarrow import parquet

from headrace.cli.main import main
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import DataLossError, OptionError
from headrace.scan.export import run
from headrace.scan.export.run import STATE_KEY, Exporter, ExportOptions, ExportState
from headrace.scan.read import SplitReader
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, encode_batch
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.fixtures_clouds import ON_CLOUDS, bucket_of
from tests.spark.world import ScanWorld, records
from tests.storage.altered_reads import reads_of
from tests.storage.batches import plain_batch

DAY_MS = 86_400_000


class Killed(Exception):
    """The exporter's process ends here."""


class KillingTarget(MemoryStore):
    """A target that ends the process at its `at`-th put, before or after the put takes effect."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.at, self.after = 0, False

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> Any:
        self.at -= 1
        if self.at == 0 and not self.after:
            raise Killed
        stored = await super().put(key, body, if_absent=if_absent)
        if self.at == 0:
            raise Killed
        return stored


async def export(world: ScanWorld, target: MemoryStore, **options: Any) -> int:
    """One run, in a new process."""
    reader = SplitReader(reads_of(world.store), pin_hint="")
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    reports: list[tuple[int, int]] = []
    exporter = Exporter(
        cluster, reader, target, ExportOptions(topic="orders", **options), lambda *done: reports.append(done)
    )
    try:
        rows = await exporter.run()
    finally:
        await asyncio.to_thread(reader.close)
    assert not reports or reports[-1][0] == reports[-1][1]
    return rows


async def exported(target: ObjectStore) -> list[dict[str, Any]]:
    """The rows of all files, with the date of their folder."""
    rows = []
    async for info in target.list_objects("date="):
        table = parquet.read_table(io.BytesIO(await target.get(info.key)))
        rows += [row | {"date": info.key[5:15]} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


async def check(world: ScanWorld, target: ObjectStore) -> None:
    """The files have what a consumer reads, each record once and under its date."""
    rows = await exported(target)
    consumed = await world.consumed("orders")
    assert [(r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in rows] == [
        (row.topic, row.partition, row.offset, row.key, row.value) for row in consumed
    ]
    for row, seen in zip(rows, consumed, strict=True):
        assert row["timestamp"] == datetime.datetime.fromtimestamp(seen.timestamp / 1_000, datetime.UTC)
        assert row["date"] == row["timestamp"].date().isoformat()
        assert [(h["key"], h["value"]) for h in row["headers"] or ()] == list(seen.headers)


async def test_a_run_continues_where_the_last_one_ended(world: ScanWorld) -> None:
    a, b = await world.topic("orders", 2)
    target = MemoryStore(SystemClock())
    for number in range(4):
        dead = plain_batch(1, b"dead", **NEVER_SEEN)
        await world.commit((a, records(number * 40_000)), (a, dead), (b, records(number, 2)))
    assert await export(world, target, chunk_bytes=1) == 20
    await check(world, target)
    assert len({row["date"] for row in await exported(target)}) > 1
    assert await export(world, target) == 0
    await world.compact(1)
    (c,) = (await world.grow("orders", 3))[2:]
    await world.commit((a, records(9)), (c, records(9)))
    assert await export(world, target) == 6
    await check(world, target)
    assert not await world.pins()


async def test_killed_at_any_step_it_leaves_no_record_twice_and_none_out(world: ScanWorld) -> None:
    keys = await world.topic("orders", 2)
    rng, target = random.Random(5), KillingTarget()
    for number in range(12):
        await world.commit(*((key, records(number * 30_000)) for key in keys))
        if number == 6:
            await world.compact(2)
        target.at, target.after = rng.randint(1, 5), rng.random() < 0.5
        try:
            await export(world, target, chunk_bytes=rng.choice([1, 300, 1 << 20]))
        except Killed:
            await world.compact(1)
    target.at = 0
    await export(world, target)
    await check(world, target)


async def test_a_chunk_that_was_begun_is_written_again_with_its_own_end(
    world: ScanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: a run that chooses a new end leaves a chunk's files and those of a longer one."""
    (key,) = await world.topic("orders", 1)

    async def broken(target: KillingTarget) -> None:
        await world.write(key, 1)
        target.at, target.after = 2, True
        with pytest.raises(Killed):
            await export(world, target, chunk_bytes=1)
        await world.write(key, 2)
        await export(world, target)

    sound = KillingTarget()
    await broken(sound)
    await check(world, sound)
    monkeypatch.setattr(ExportState, "begin", lambda self, partition, end: self.writing.update({partition: end}))
    monkeypatch.setattr(run, "load_state", _without_chunks)
    wrong = KillingTarget()
    await broken(wrong)
    with pytest.raises(AssertionError):
        await check(world, wrong)


async def _without_chunks(*args: Any) -> ExportState:
    state = await _load_state(*args)
    state.writing.clear()
    return state


_load_state = run.load_state


def json_batch(*values: bytes | None) -> bytes:
    return encode_batch([Record(n, 1_000, None, value) for n, value in enumerate(values)], base_offset=0)


async def test_json_values_get_one_schema(world: ScanWorld) -> None:
    (key,) = await world.topic("orders", 1)
    target = MemoryStore(SystemClock())
    await world.commit((key, json_batch(b'{"id":1,"tags":["a"]}', None, b'{"id":2,"name":"x\\ny",\n "at":{"z":1.5}}')))
    await export(world, target, infer_json=True)
    await world.commit((key, json_batch(b'{"id":3}')))
    await export(world, target, infer_json=True)
    values = [row["value"] for row in await exported(target)]
    assert values == [
        {"id": 1, "tags": ["a"], "name": None, "at": None},
        None,
        {"id": 2, "tags": None, "name": "x\ny", "at": {"z": 1.5}},
        {"id": 3, "tags": None, "name": None, "at": None},
    ]
    await world.commit((key, json_batch(b'{"id":4}', b'{"id":"five"}')))
    with pytest.raises(OptionError, match="does not fit the inferred schema: topic=orders partition=0 offset=5"):
        await export(world, target, infer_json=True)
    assert [row["value"] for row in await exported(target)] == values, "nothing half-written"
    with pytest.raises(OptionError, match="JSON is inferred in all runs, or in none"):
        await export(world, target)


@pytest.mark.parametrize("after", [False, True])
async def test_inferred_json_continues_after_a_kill_at_any_step(world: ScanWorld, after: bool) -> None:
    (key,) = await world.topic("orders", 1)
    for number in range(2):
        await world.commit((key, json_batch(b'{"a":%d}' % number)))
    for at in range(1, 8):
        target = KillingTarget()
        target.at, target.after = at, after
        with contextlib.suppress(Killed):
            await export(world, target, infer_json=True, chunk_bytes=1)
        assert at < 7 or target.at > 0, "seven puts: the last one is not reached"
        target.at = 0
        await export(world, target, infer_json=True, chunk_bytes=1)
        assert [row["value"] for row in await exported(target)] == [{"a": 0}, {"a": 1}]


async def test_the_schema_is_inferred_behind_delete_markers(world: ScanWorld, caplog: pytest.LogCaptureFixture) -> None:
    a, b = await world.topic("orders", 2)
    target = MemoryStore(SystemClock())
    await world.commit((a, json_batch(None)), (b, json_batch(None)))
    assert await export(world, target, infer_json=True) == 0
    assert "no value to infer a schema from yet" in caplog.text
    await world.commit((b, json_batch(b'{"a":3}')))
    assert await export(world, target, infer_json=True, chunk_bytes=1) == 3
    assert [row["value"] for row in await exported(target)] == [None, None, {"a": 3}]
    schemas = {
        str(parquet.read_schema(io.BytesIO(await target.get(info.key)))) async for info in target.list_objects("date=")
    }
    assert len(schemas) == 1


async def test_nothing_is_begun_before_the_schema_is_inferred(world: ScanWorld) -> None:
    (key,) = await world.topic("orders", 1)
    target = MemoryStore(SystemClock())
    await world.commit((key, json_batch(b"oops")))
    with pytest.raises(OptionError, match="is not a JSON object: topic=orders partition=0 offset=0"):
        await export(world, target, infer_json=True)
    await world.delete_records(key, 1)
    await world.commit((key, json_batch(b'{"a":3}')))
    assert await export(world, target, infer_json=True) == 1


async def test_a_target_belongs_to_one_topic(world: ScanWorld) -> None:
    (key,) = await world.topic("orders", 1)
    target = MemoryStore(SystemClock())
    await world.write(key, 1)
    await export(world, target)
    topic_id = world.view.image.topics_by_name["orders"].topic_id
    assert await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic_id])
    await world.topic("orders", 1)
    with pytest.raises(OptionError, match="another topic id"):
        await export(world, target)
    await target.put(STATE_KEY, b"{}")
    with pytest.raises(OptionError, match="not an export's state"):
        await export(world, target)


async def test_what_retention_removed_before_is_an_error_or_skipped(world: ScanWorld) -> None:
    (key,) = await world.topic("orders", 1)
    target = MemoryStore(SystemClock())
    await world.write(key, 1)
    await export(world, target)
    for number in range(3):
        await world.write(key, number)
    await world.delete_records(key, 7)
    with pytest.raises(DataLossError, match="orders-0 offsets=3-"):
        await export(world, target)
    assert await export(world, target, fail_on_data_loss=False) == 5
    assert [row["offset"] for row in await exported(target)] == [0, 1, 2, 7, 8, 9, 10, 11]


async def test_a_partition_that_lost_all_its_records_is_skipped(world: ScanWorld) -> None:
    a, b = await world.topic("orders", 2)
    target = MemoryStore(SystemClock())
    await world.write(a, 1)
    await export(world, target)
    await world.write(a, 2)
    await world.delete_records(a, 6)
    await world.write(b, 3)
    with pytest.raises(DataLossError, match="orders-0 offsets=3-5: the log has 6 to 5"):
        await export(world, target)
    assert await export(world, target, fail_on_data_loss=False) == 3
    assert [(row["partition"], row["offset"]) for row in await exported(target)] == [
        (p, n) for p in (0, 1) for n in range(3)
    ]


async def test_the_command(world: ScanWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    place = tmp_path / "lake"
    line = ["export", "--topic", "orders", "--to", str(place), "--metastore-url", world.url]
    whole = [*line, "--bucket", world.bucket.as_uri()]
    assert await asyncio.to_thread(main, whole) == 0
    assert capsys.readouterr().out == f"exported 3 records of orders to {place}\n"
    (file,) = place.glob("date=2023-11-14/*.parquet")
    assert file.name == "orders-0-000000000000000000-000000000000000002.parquet"
    assert parquet.read_table(file).num_rows == 3
    assert await asyncio.to_thread(main, line) == 1
    assert "bucket is not set (--bucket)" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*whole, "--topic", "ordres"]) == 1
    assert "topic does not exist: topic=ordres" in capsys.readouterr().err


@pytest.mark.parametrize("world", ON_CLOUDS, indirect=True)
async def test_the_command_from_a_bucket_on_a_cloud_to_another(
    world: ScanWorld, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = await world.topic("orders", 2)
    for number in range(3):
        await world.commit((a, records(number * 90_000)), (b, records(number, 2)))
    lake = bucket_of("azure" if world.place["bucket"].startswith("az:") else "google", request)
    place = {name.replace(".", "-"): value for name, value in world.options.items()}
    flags = [part for name, value in place.items() for part in (f"--{name}", value)]
    target = lake.open()
    for rows in (15, 0):
        assert await asyncio.to_thread(main, ["export", "--topic", "orders", "--to", lake.url, *flags]) == 0
        assert f"exported {rows} records" in capsys.readouterr().out
    await check(world, target)
    await target.close()
