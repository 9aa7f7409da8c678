"""Segment files: their contents, parallel uploads, and what follows when one fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import born_ms, file_id_of
from headrace.storage.objects.store import ObjectInfo
from headrace.storage.segment.format import decode_footer
from tests.agent.produce.produce_faults import HeldStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.storage.batches import plain_batch

LINGER = 0.1


def _world(**settings: Any) -> tuple[ProduceWorld, HeldStore]:
    world = ProduceWorld(**settings)
    world.store = store = HeldStore(world.bucket)
    return world, store


def _batch(text: str, **fields: int) -> bytes:
    return plain_batch(1, text.encode(), **fields)


async def _flush(world: ProduceWorld) -> None:
    await world.clock.advance(LINGER)


@pytest.mark.requirement("W2", "W6")
async def test_batches_of_many_clients_and_partitions_become_one_sorted_file() -> None:
    async with ProduceWorld() as world:
        second, first = world.create_topic("b", 2), world.create_topic("a", 2)
        assert second.topic_id < first.topic_id
        clients = [world.connect() for _ in range(3)]
        sent = [
            asyncio.create_task(world.produce(client, {name: {1: _batch(f"{n}"), 0: _batch(f"{n}")}}))
            for n, client in enumerate(clients)
            for name in ("a", "b")
        ]
        await world.clock.run(asyncio.wait(sent))
        (info,) = [info async for info in world.bucket.list_objects()]
        footer = decode_footer(await world.bucket.get(info.key), info.size)
        assert [(entry.topic_id, entry.partition_index, entry.batch_count) for entry in footer.partitions] == [
            (second.topic_id, 0, 3),
            (second.topic_id, 1, 3),
            (first.topic_id, 0, 3),
            (first.topic_id, 1, 3),
        ]
        for topic in (first, second):
            for index in range(2):
                log = await world.log_of(topic.key(index) or 0)
                assert [stored.data for stored in log] == [_batch(f"{n}") for n in range(3)]
        assert world.flushed == [file_id_of(info.key)]
        assert born_ms(world.flushed[0]) == world.clock.wall_ms()
        assert world.metric("flushes_total", reason="linger") == 1


@pytest.mark.requirement("W4")
async def test_uploads_run_side_by_side_up_to_their_limit() -> None:
    world, store = _world(upload_parallelism=2, flush_bytes=65_536)
    async with world:
        world.create_topic("t", 4)
        big = plain_batch(9, b"x" * 8000)
        sent = [asyncio.create_task(world.produce(world.connect(), {"t": {index: big}})) for index in range(4)]
        await world.clock.settle()
        assert len(store.puts) == 2
        assert world.metric("flushes_total", reason="size") == 4
        await store.puts[1].finish()
        await world.clock.settle()
        assert [task.done() for task in sent] == [False, True, False, False]
        assert len(store.puts) == 3
        for put in (store.puts[0], store.puts[2]):
            await put.finish()
        await world.clock.settle()
        await store.puts[3].finish()
        await world.clock.run(asyncio.wait(sent))
        assert world.metric("files_in_flight") == 0
        await world.clock.advance(LINGER)
        names = sorted(task.get_name() for task in world.pipeline._tasks)
        assert names == ["produce-commit", "produce-expiry", "produce-flush", "produce-inline"]


@pytest.mark.parametrize("error", [UnavailableError("down"), OutcomeUnknownError("lost"), RuntimeError("a bug")])
async def test_a_failed_upload_fails_its_batches_and_those_behind_them_only(error: Exception) -> None:
    world, store = _world()
    async with world:
        topic = world.create_topic("t", 2)
        steady, other = world.connect(), world.connect()
        owned = {"producer_id": 5, "producer_epoch": 0}
        first = [
            asyncio.create_task(world.produce(steady, {"t": {0: _batch("lost")}})),
            asyncio.create_task(world.produce(other, {"t": {1: _batch("lost", **owned, base_sequence=0)}})),
        ]
        await _flush(world)
        behind = asyncio.create_task(world.produce(steady, {"t": {0: _batch("behind"), 1: _batch("kept")}}))
        same_producer = asyncio.create_task(
            world.produce(world.connect(), {"t": {1: _batch("behind", **owned, base_sequence=1)}})
        )
        other_stream = asyncio.create_task(world.produce(other, {"t": {0: _batch("kept")}}))
        await _flush(world)
        buffered = asyncio.create_task(world.produce(steady, {"t": {0: _batch("buffered")}}))
        await world.clock.settle()
        assert len(store.puts) == 2
        store.puts[0].fail(error)
        await world.clock.settle()
        assert [task.done() for task in (*first, behind, same_producer, buffered)] == [True, True, False, True, True]
        fresh = asyncio.create_task(world.produce(steady, {"t": {0: _batch("again")}}))
        await store.puts[1].finish()
        await _flush(world)
        await store.puts[2].finish()
        await world.clock.run(asyncio.wait([behind, other_stream, fresh]))
        failed = [task.result()["t", index].error for task, index in zip(first, (0, 1), strict=True)]  # type: ignore[index]
        failed += [task.result()["t", index].error for task, index in ((behind, 0), (same_producer, 1), (buffered, 0))]  # type: ignore[index]
        assert failed == ["kafka_storage_error"] * 5
        logs = [[stored.data for stored in await world.log_of(topic.key(index) or 0)] for index in range(2)]
        assert logs == [[_batch("kept"), _batch("again")], [_batch("kept")]]


async def test_a_stored_length_that_differs_is_never_committed() -> None:
    world = ProduceWorld()

    class ShortStore(HeldStore):
        async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
            return await world.bucket.put(key, body[:-1], if_absent=if_absent)

    world.store = ShortStore(world.bucket)
    async with world:
        topic = world.create_topic("t")
        answers = await world.answers({"t": {0: _batch("x")}})
        assert answers["t", 0].error == "kafka_storage_error"
        assert await world.log_of(topic.key(0) or 0) == []
        assert not world.flushed


async def test_an_unknown_database_clock_fails_the_file_not_the_path() -> None:
    world = ProduceWorld()
    async with world:
        world.create_topic("t")
        uploader = world.pipeline._uploader
        uploader._callbacks = replace(uploader._callbacks, database_now_ms=_raise_unavailable)
        answers = await world.answers({"t": {0: _batch("x")}})
        assert answers["t", 0].error == "kafka_storage_error"
        uploader._callbacks = replace(uploader._callbacks, database_now_ms=world.clock.wall_ms)
        answers = await world.answers({"t": {0: _batch("x")}})
        assert answers["t", 0].error == "none"


def _raise_unavailable() -> int:
    raise UnavailableError("not polled yet")


async def test_a_file_without_waiting_requests_is_not_uploaded() -> None:
    world, store = _world(upload_parallelism=1)
    async with world:
        topic = world.create_topic("t", 2)
        held = asyncio.create_task(world.produce(world.connect(), {"t": {0: _batch("held")}}, timeout_ms=60_000))
        await _flush(world)
        given_up = asyncio.create_task(world.produce(world.connect(), {"t": {1: _batch("late")}}, timeout_ms=2000))
        await world.clock.advance(10)
        assert given_up.result()["t", 1].error == "request_timed_out"  # type: ignore[index]
        await store.puts[0].finish()
        await world.clock.run(held)
        await world.clock.settle()
        assert len(store.puts) == 1
        assert await world.log_of(topic.key(1) or 0) == []
        assert world.metric("files_in_flight") == 0


async def test_a_refused_upload_says_why() -> None:
    world, store = _world()
    async with world:
        world.create_topic("t")
        sent = asyncio.create_task(world.produce(world.connect(), {"t": {0: _batch("x")}}))
        await _flush(world)
        store.puts[0].fail(InvalidError("no such bucket: name=b"))
        answers = await sent
        assert answers is not None
        assert "no such bucket" in (answers["t", 0].message or "")
