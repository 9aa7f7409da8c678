"""The job that copies a link's partitions, on the real metastore: what the source has, each record once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.compactor.links import copy_job, partition_copy
from headrace.compactor.links.source import Fetched
from headrace.metastore.api.links import LinkedProgress
from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.links.fake_source import renamed, truncate
from tests.compactor.links.link_world import LinkWorld
from tests.compactor.links.source_log import SourceLog
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X14")


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, raw: Session, patch: Patch) -> LinkWorld:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    patch.replace(copy_job, "RUN_SECONDS", 10.0)
    found = LinkWorld(metastore)
    await found.create()
    return found


def _filled(number: int) -> SourceLog:
    log = SourceLog()
    for turn in range(6):
        log.append(3)
        log.append(2, number + 3)
        log.append(2, number + 10, transactional=True)
        log.finish(number + 10, commit=turn % 2 == 0)
    return log


def _is_whole(world: LinkWorld) -> Callable[[list[LinkedProgress]], bool]:
    """Return whether every partition ends, and begins, where its source does."""

    def holds(progress: list[LinkedProgress]) -> bool:
        logs = [world.source.topics[each.topic].logs[each.partition_index] for each in progress]
        wanted = [(log.stable, log.end, log.start, "") for log in logs]
        return wanted == [(e.high_watermark, e.source_end, e.log_start_offset, e.problem) for e in progress]

    return holds


async def _copied(world: LinkWorld) -> list[LinkedProgress]:
    """Every partition, once it is what its source is."""
    progress = await world.run_until(_is_whole(world))
    for each in progress:
        log = world.source.topics[each.topic].logs[each.partition_index]
        records = await world.records(each.partition_key)
        assert [record for record in records if record.offset >= log.start] == log.visible
    return progress


async def test_partitions_are_copied_record_for_record(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20), SourceLog())
    await world.add("payments", _filled(40))
    world.source.topics["payments"].logs[0].delete_below(7)
    world.source.topics["orders"].logs[1].clean({1, 2, 30})
    await _copied(world)
    for topic in world.source.topics.values():
        for log in topic.logs:
            log.append(3, 3)
            log.leader_epoch += 1
            log.append(1)
    world.source.answer_bytes = 200
    progress = await _copied(world)
    assert all(each.current_ms > 0 and each.copied_bytes > 0 for each in progress)


async def test_a_start_that_passed_the_copy_is_a_gap_that_is_counted(world: LinkWorld) -> None:
    topic = await world.add("orders", SourceLog(), SourceLog())
    first, second = topic.logs
    for log in topic.logs:
        log.append(4)
    await _copied(world)
    for log in topic.logs:
        log.append(4)
    first.append(3)
    first.delete_below(8)
    second.delete_below(8)
    progress = await _copied(world)
    assert [each.lost for each in progress] == [4, 4]


async def test_a_truncated_source_stops_its_partition_alone(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    before, _ = await _copied(world)
    truncate(topic.logs[0], 10)
    topic.logs[0].append(40)
    topic.logs[1].append(1)
    first, second = await world.run_until(
        lambda found: "truncated" in found[0].problem and found[1].high_watermark == topic.logs[1].end
    )
    assert first.high_watermark == before.high_watermark
    assert second.problem == ""


async def test_a_source_that_ends_lower_than_the_copy_was_truncated(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0))
    await _copied(world)
    truncate(topic.logs[0], 10)
    await world.run_until(lambda found: "truncated" in found[0].problem)


async def test_another_topic_of_the_name_is_not_copied(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0))
    await _copied(world)
    end = topic.logs[0].end
    again = world.source.topics["orders"] = renamed(topic)
    again.logs[0].append(200)
    (progress,) = await world.run_until(lambda found: "created again" in found[0].problem)
    assert progress.high_watermark == end
    del world.source.topics["orders"]
    await world.run_until(lambda found: "no topic of this name" in found[0].problem)


async def test_another_cluster_at_the_address_is_not_copied(world: LinkWorld) -> None:
    await world.add("orders", _filled(0))
    await world.report_source()
    world.source.cluster_id = "another"
    (progress,) = await world.run_until(lambda found: "another cluster answers" in found[0].problem)
    assert progress.high_watermark == 0


async def test_a_source_that_is_away_costs_a_problem_and_one_line(
    world: LinkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await world.add("orders", _filled(0))
    world.source.away = "connection refused"
    await world.run_until(lambda found: "connection refused" in found[0].problem)
    lines = [each for each in caplog.records if "cannot read its source" in each.getMessage()]
    assert len(lines) == 1
    world.source.away = ""
    await _copied(world)
    assert topic.logs[0].end > 0


async def test_damage_stops_its_partition_alone_and_is_fetched_again(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20))

    def altered(part: Fetched) -> Fetched:
        if part.partition == 0 and part.records:
            part.records[-1] ^= 1
        return part

    world.source.spoil = altered
    end = world.source.topics["orders"].logs[1].end
    first, second = await world.run_until(
        lambda found: "checksum" in found[0].problem and found[1].high_watermark == end
    )
    assert first.high_watermark < second.high_watermark
    world.source.spoil = lambda part: part
    await _copied(world)


async def test_a_transaction_that_hangs_is_named(world: LinkWorld, patch: Patch) -> None:
    patch.replace(copy_job, "REASON_SECONDS", 1.0)
    patch.replace(partition_copy, "STALL_SECONDS", 1.0)
    topic = await world.add("orders", SourceLog())
    log = topic.logs[0]
    log.append(3)
    log.append(2, 77, transactional=True)
    log.append(1)
    (progress,) = await world.run_until(lambda found: "producer id 77" in found[0].problem)
    assert progress.high_watermark == 3
    log.finish(77, commit=True)
    await _copied(world)


async def test_a_copy_is_ready_when_it_has_all_and_the_producers(world: LinkWorld, raw: Session) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    for log in topic.logs:
        log.sequences[99] = (4, 8)  # known at the source, but none of its batches is left
    await _copied(world)
    assert not any(each.is_ready for each in await world.progress())
    topic_ids = [each.topic_id for each in await world.progress()]
    await world.metastore.links.ask_promotion(topic_ids[:1], force=False)
    topic.logs[1].append(1, 33, transactional=True)
    await world.run_until(lambda found: [each.is_ready for each in found] == [True, False])
    found = await (
        await raw.execute("SELECT producer_id, epoch, next_sequence FROM producer_state WHERE producer_id = 99")
    ).fetchall()
    assert found == [(99, 4, 8)]


async def test_records_that_come_after_a_promotion_are_counted(
    world: LinkWorld, patch: Patch, caplog: pytest.LogCaptureFixture, raw: Session
) -> None:
    patch.replace(copy_job, "RUN_SECONDS", 4_000.0)
    patch.replace(copy_job, "LOOK_SECONDS", 1.0)
    await world.create(link__watch__ms="3600000")
    topic = await world.add("orders", _filled(0))
    (progress,) = await world.progress()
    await world.metastore.links.ask_promotion([progress.topic_id], force=False)
    running = asyncio.create_task(world.run())
    for _ in range(100_000):
        if (await world.progress())[0].is_ready:
            break
    head = await world.metastore.cluster.metadata_head()
    assert await world.metastore.links.promote_topics(world.controller_epoch, head, [progress.topic_id], ["orders"])
    end = topic.logs[0].end
    topic.logs[0].append(5)
    for _ in range(100_000):
        if running.done() or "after the promotion" in caplog.text:
            break
        await world.progress()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (line,) = [text for text in caplog.messages if "after the promotion" in text]
    assert f"topic=orders partition=0 offsets={end}-{end + 4}" in line


async def test_writes_are_denied_before_a_promotion_that_asks_for_it(world: LinkWorld) -> None:
    await world.create(link__fence__source="true")
    await world.add("orders", _filled(0))
    await world.add("payments", _filled(20))
    progress = await world.progress()
    await world.metastore.links.ask_promotion([progress[0].topic_id], force=False)
    await world.run_until(lambda found: [each.is_ready for each in found] == [True, False])
    assert world.source.denied == {"orders"}


async def test_each_share_copies_other_partitions(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20), _filled(40))
    await world.run(share=1, shares=2)
    assert all(each.partition_key % 2 for each in await world.progress() if each.high_watermark)
    await world.run(share=0, shares=2)
    await _copied(world)


async def test_two_workers_with_one_partition_copy_it_once(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    world.source.answer_bytes = 300
    for _ in range(3):
        await asyncio.gather(world.run(worker="a"), world.run(worker="b"))
        for log in topic.logs:
            log.append(30)
    world.source.answer_bytes = 1 << 20
    await _copied(world)


async def test_a_link_that_is_paused_is_not_copied(world: LinkWorld) -> None:
    await world.add("orders", _filled(0))
    await world.create(link__state="paused")
    await world.run()
    assert world.source.fetches == 0
