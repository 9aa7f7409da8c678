"""Consumer groups' durable part: fenced coordinators, offsets that end with their partition."""

from __future__ import annotations

import asyncio

import pytest

from metastore.postgres.store import PostgresMetastore
from metastore.values import CommittedOffset
from storage.errors import FencedError, InvalidError
from tests.metastore.sessions import create, join, new_agent, new_topic, rows, session, waiting


async def _keys(store: PostgresMetastore, count: int = 3) -> list[int]:
    image = await create(store, new_topic("events", count))
    return [image.topics_by_name["events"].key(index) or 0 for index in range(count)]


def _at(key: int, offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(key, offset, 3, metadata)


async def test_a_claim_hands_over_what_was_saved_last_under_a_higher_epoch(metastore: PostgresMetastore) -> None:
    first, second = await join(metastore), await join(metastore)
    assert await metastore.claim_group("g", *first) == (1, b"")
    await metastore.save_group("g", 1, b"generation 1")
    await metastore.save_group("g", 1, b"generation 2")
    assert await metastore.claim_group("g", *second) == (2, b"generation 2")
    assert await metastore.claim_group("other", *second) == (1, b"")


async def test_an_old_coordinator_can_neither_save_nor_commit(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    first, second = await join(metastore), await join(metastore)
    await metastore.claim_group("g", *first)
    await metastore.commit_offsets("g", 1, [_at(keys[0], 5)])
    await metastore.claim_group("g", *second)
    with pytest.raises(FencedError, match="group=g coordinator_epoch=1"):
        await metastore.save_group("g", 1, b"late")
    with pytest.raises(FencedError, match="group=g coordinator_epoch=1"):
        await metastore.commit_offsets("g", 1, [_at(keys[0], 6)])
    with pytest.raises(FencedError):
        await metastore.save_group("never claimed", 1, b"")
    assert await metastore.fetch_offsets("g", None) == [_at(keys[0], 5)]
    assert await metastore.claim_group("g", *second) == (3, b"")


async def test_only_a_registered_unfenced_agent_may_coordinate(metastore: PostgresMetastore) -> None:
    fenced = await metastore.register_agent(new_agent())
    live = await join(metastore)
    for agent in (fenced, live._replace(broker_epoch=live.broker_epoch - 1), live._replace(node_id=99)):
        with pytest.raises(FencedError, match=f"node_id={agent.node_id}"):
            await metastore.claim_group("g", *agent)
    assert await metastore.claim_group("g", *live) == (1, b"")


async def test_a_commit_that_waits_behind_a_claim_is_fenced(metastore: PostgresMetastore, metastore_url: str) -> None:
    keys = await _keys(metastore)
    agent = await join(metastore)
    await metastore.claim_group("g", *agent)
    async with session(metastore_url) as claimer, session(metastore_url) as observer:
        async with claimer.transaction():
            await claimer.execute("UPDATE consumer_groups SET coordinator_epoch = 2 WHERE group_id = 'g'")
            commit = asyncio.create_task(metastore.commit_offsets("g", 1, [_at(keys[0], 5)]))
            save = asyncio.create_task(metastore.save_group("g", 1, b"late"))
            await waiting(observer, 2)
        for outcome in await asyncio.gather(commit, save, return_exceptions=True):
            assert isinstance(outcome, FencedError)
    assert await metastore.fetch_offsets("g", None) == []


async def test_of_many_claims_at_once_each_gets_an_epoch_of_its_own(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    claims = await asyncio.gather(*(metastore.claim_group("g", *agent) for _ in range(8)))
    assert sorted(epoch for epoch, _ in claims) == list(range(1, 9))


async def test_positions_are_stored_replaced_and_fetched(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    assert await metastore.commit_offsets("g", None, [_at(keys[1], 7, "note"), _at(keys[0], 5)]) == [True, True]
    assert await metastore.commit_offsets("g", None, [_at(keys[0], 6, "\N{SNOWMAN}")]) == [True]
    await metastore.commit_offsets("h", None, [_at(keys[2], 1)])

    assert await metastore.fetch_offsets("g", None) == [_at(keys[0], 6, "\N{SNOWMAN}"), _at(keys[1], 7, "note")]
    assert await metastore.fetch_offsets("g", [keys[2], keys[1]]) == [_at(keys[1], 7, "note")]
    assert await metastore.fetch_offsets("g", []) == []
    assert await metastore.fetch_offsets("nobody", None) == []


async def test_unknown_partitions_are_refused_one_by_one_and_the_rest_is_stored(
    metastore: PostgresMetastore,
) -> None:
    keys = await _keys(metastore)
    unknown = keys[-1] + 1
    answers = await metastore.commit_offsets("g", None, [_at(unknown, 1), _at(keys[0], 5), _at(unknown + 1, 1)])
    assert answers == [False, True, False]
    assert await metastore.fetch_offsets("g", None) == [_at(keys[0], 5)]
    assert await metastore.commit_offsets("g", None, []) == []


async def test_of_two_positions_of_one_partition_in_a_call_the_last_counts(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    assert await metastore.commit_offsets("g", None, [_at(keys[0], 5), _at(keys[0], 4)]) == [True, True]
    assert await metastore.fetch_offsets("g", None) == [_at(keys[0], 4)]


async def test_a_call_with_one_impossible_position_stores_none(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    with pytest.raises(InvalidError):
        await metastore.commit_offsets("g", None, [_at(keys[0], 5), _at(keys[1], 2**63)])
    with pytest.raises(InvalidError):
        await metastore.commit_offsets("g", None, [_at(keys[0], 5), _at(keys[1], 5, "a\x00b")])
    assert await metastore.fetch_offsets("g", None) == []


async def test_commits_of_overlapping_partitions_in_any_order_do_not_deadlock(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    keys = await _keys(metastore, 40)
    calls = [
        metastore.commit_offsets("g", None, [_at(key, number) for key in (keys if number % 2 else keys[::-1])])
        for number in range(20)
    ]
    assert all(all(answers) for answers in await asyncio.gather(*calls))
    async with session(metastore_url) as raw:
        assert await rows(raw, "SELECT count(*) FROM group_offsets") == [(40,)]
