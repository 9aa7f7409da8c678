"""The job that copies a link's partitions, on the real metastore: what the source has, once, whatever it does."""

from __future__ import annotations

import asyncio

import pytest

from headrace.compactor.links import copy_job
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
    patch.replace(copy_job, "RUN_SECONDS", 60.0)
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


async def _check(world: LinkWorld) -> list[LinkedProgress]:
    """Every partition is what its source is."""
    progress = await world.progress()
    for each in progress:
        log = world.source.topics[each.topic].logs[each.partition_index]
        assert each.problem == ""
        assert (each.high_watermark, each.source_end, each.log_start_offset) == (log.stable, log.end, log.start)
        records = await world.records(each.partition_key)
        assert [record for record in records if record.offset >= log.start] == log.visible
    return progress


async def test_partitions_are_copied_record_for_record(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20), SourceLog())
    await world.add("payments", _filled(40))
    world.source.topics["payments"].logs[0].delete_below(7)
    world.source.topics["orders"].logs[1].clean({1, 2, 30})
    await world.run()
    await _check(world)
    for topic in world.source.topics.values():
        for log in topic.logs:
            log.append(3, 3)
            log.leader_epoch += 1
            log.append(1)
    world.source.answer_bytes = 200
    await world.run()
    progress = await _check(world)
    assert all(each.current_ms > 0 and each.copied_bytes > 0 for each in progress)


async def test_a_start_that_passed_the_copy_is_a_gap_that_is_counted(world: LinkWorld) -> None:
    topic = await world.add("orders", SourceLog(), SourceLog())
    first, second = topic.logs
    for log in topic.logs:
        log.append(4)
    await world.run()
    for log in topic.logs:
        log.append(4)
    first.append(3)
    first.delete_below(8)
    second.delete_below(8)
    await world.run()
    progress = await _check(world)
    assert [each.lost for each in progress] == [4, 4]


async def test_a_truncated_source_stops_its_partition_alone(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    await world.run()
    truncate(topic.logs[0], 10)
    topic.logs[0].append(40)
    topic.logs[1].append(1)
    await world.run()
    first, second = await world.progress()
    assert "truncated" in first.problem
    assert (second.problem, second.high_watermark) == ("", topic.logs[1].end)


async def test_a_source_that_ends_lower_than_the_copy_was_truncated(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0))
    await world.run()
    truncate(topic.logs[0], 10)
    await world.run()
    (progress,) = await world.progress()
    assert "truncated" in progress.problem


async def test_another_topic_of_the_name_is_not_copied(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0))
    await world.run()
    end = topic.logs[0].end
    again = world.source.topics["orders"] = renamed(topic)
    again.logs[0].append(200)
    await world.run()
    (progress,) = await world.progress()
    assert "created again" in progress.problem
    assert progress.high_watermark == end
    del world.source.topics["orders"]
    await world.run()
    (progress,) = await world.progress()
    assert "no topic of this name" in progress.problem


async def test_another_cluster_at_the_address_is_not_copied(world: LinkWorld) -> None:
    await world.add("orders", _filled(0))
    await world.report_source()
    world.source.cluster_id = "another"
    await world.run()
    (progress,) = await world.progress()
    assert "another cluster answers" in progress.problem
    assert progress.high_watermark == 0


async def test_a_source_that_is_away_costs_a_problem_and_one_line(
    world: LinkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await world.add("orders", _filled(0))
    world.source.away = "connection refused"
    await world.run()
    (progress,) = await world.progress()
    assert "connection refused" in progress.problem
    lines = [each for each in caplog.records if "cannot read its source" in each.getMessage()]
    assert 1 <= len(lines) <= 2
    world.source.away = ""
    await world.run()
    await _check(world)
    assert topic.logs[0].end > 0


async def test_damage_stops_its_partition_alone_and_is_fetched_again(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20))

    def altered(part: Fetched) -> Fetched:
        if part.partition == 0 and part.records:
            part.records[-1] ^= 1
        return part

    world.source.spoil = altered
    await world.run()
    first, second = await world.progress()
    assert "checksum" in first.problem
    assert second.high_watermark == world.source.topics["orders"].logs[1].end
    assert first.high_watermark < second.high_watermark
    world.source.spoil = lambda part: part
    await world.run()
    await _check(world)


async def test_a_transaction_that_hangs_is_named(world: LinkWorld, patch: Patch) -> None:
    patch.replace(copy_job, "RUN_SECONDS", 200.0)
    topic = await world.add("orders", SourceLog())
    log = topic.logs[0]
    log.append(3)
    log.append(2, 77, transactional=True)
    log.append(1)
    await world.run()
    (progress,) = await world.progress()
    assert "producer id 77" in progress.problem
    assert progress.high_watermark == 3
    log.finish(77, commit=True)
    await world.run()
    await _check(world)


async def test_a_copy_is_ready_when_it_has_all_and_the_producers(world: LinkWorld, raw: Session) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    for log in topic.logs:
        log.sequences[99] = (4, 8)  # known at the source, but none of its batches is left
    await world.run()
    assert not any(each.is_ready for each in await world.progress())
    topic_ids = [each.topic_id for each in await world.progress()]
    await world.metastore.links.ask_promotion(topic_ids[:1], force=False)
    topic.logs[1].append(1, 33, transactional=True)
    await world.run()
    assert [each.is_ready for each in await world.progress()] == [True, False]
    found = await (
        await raw.execute("SELECT producer_id, epoch, next_sequence FROM producer_state WHERE producer_id = 99")
    ).fetchall()
    assert found == [(99, 4, 8)]


async def test_writes_are_denied_before_a_promotion_that_asks_for_it(world: LinkWorld) -> None:
    await world.create(link__fence__source="true")
    await world.add("orders", _filled(0))
    await world.add("payments", _filled(20))
    progress = await world.progress()
    await world.metastore.links.ask_promotion([progress[0].topic_id], force=False)
    await world.run()
    assert world.source.denied == {"orders"}
    assert [each.is_ready for each in await world.progress()] == [True, False]


async def test_shares_copy_partitions_of_their_own(world: LinkWorld) -> None:
    await world.add("orders", _filled(0), _filled(20), _filled(40))
    await world.run(share=1, shares=2)
    ends = [each.high_watermark > 0 for each in await world.progress()]
    assert ends == [each.partition_key % 2 == 1 for each in await world.progress()]
    await world.run(share=0, shares=2)
    await _check(world)


async def test_two_workers_with_one_partition_copy_it_once(world: LinkWorld) -> None:
    topic = await world.add("orders", _filled(0), _filled(20))
    world.source.answer_bytes = 300
    for _ in range(3):
        await asyncio.gather(world.run(worker="a"), world.run(worker="b"))
        for log in topic.logs:
            log.append(30)
    world.source.answer_bytes = 1 << 20
    await world.run()
    await _check(world)


async def test_a_link_that_is_paused_is_not_copied(world: LinkWorld) -> None:
    await world.add("orders", _filled(0))
    await world.create(link__state="paused")
    await world.run()
    assert world.source.fetches == 0
