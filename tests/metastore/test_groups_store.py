"""Consumer groups' durable part: fenced coordinators, offsets that end with their partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupListing, GroupRecord
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, InvalidError
from tests.metastore.sessions import Session, create, delete, join, new_agent, new_topic, rows, session, waiting


async def _keys(store: PostgresMetastore, count: int = 3) -> list[int]:
    image = await create(store, new_topic("events", count))
    return [image.topics_by_name["events"].key(index) or 0 for index in range(count)]


def _at(key: int, offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(key, offset, 3, metadata)


def _record(data: bytes, state: str = "Stable", subscribed: tuple[str, ...] | None = ()) -> GroupRecord:
    return GroupRecord(GroupKind.CLASSIC, state, "consumer", subscribed, data)


async def _claim(store: PostgresMetastore, group_id: str, agent: RegisteredAgent) -> int:
    claim = await store.groups.claim_group(group_id, *agent)
    assert claim is not None
    return claim.coordinator_epoch


async def test_a_claim_hands_over_what_was_saved_last_under_a_higher_epoch(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    first = await metastore.groups.claim_group("g", *agent)
    assert first is not None
    assert first.record is None
    saved = _record(b"generation 2", subscribed=("events", "logs"))
    await metastore.groups.save_group("g", first.coordinator_epoch, _record(b"generation 1"))
    await metastore.groups.save_group("g", first.coordinator_epoch, saved)
    second = await metastore.groups.claim_group("g", *agent)
    assert second is not None
    assert second.record == saved
    assert second.coordinator_epoch > first.coordinator_epoch


async def test_no_agent_claims_what_a_live_agent_holds(metastore: PostgresMetastore) -> None:
    """The holder answers from memory: a successor waits until it released the group, left, or was fenced."""
    holder, heir = await join(metastore), await join(metastore)
    epoch = await _claim(metastore, "g", holder)
    assert await metastore.groups.claim_group("g", *heir) is None
    await metastore.groups.save_group("g", epoch, _record(b"still its own"))

    await metastore.groups.release_groups({"g": epoch, "unknown": 7})
    released = await metastore.groups.claim_group("g", *heir)
    assert released is not None
    assert released.record == _record(b"still its own")
    await metastore.groups.release_groups({"g": epoch})  # late, and without a holder
    assert await metastore.groups.claim_group("g", *holder) is None

    await metastore.cluster.unregister_agent(*heir)
    assert await metastore.groups.claim_group("g", *holder) is not None


async def test_a_fenced_holder_bars_no_other(metastore: PostgresMetastore) -> None:
    holder, heir = await join(metastore), await join(metastore)
    await _claim(metastore, "g", holder)
    await metastore.cluster.heartbeat(*holder, metadata_offset=0, want_fence=True, session_timeout_ms=18_000)
    assert await metastore.groups.claim_group("g", *heir) is not None


async def test_an_old_coordinator_can_write_nothing(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    agent = await join(metastore)
    old = await _claim(metastore, "g", agent)
    await metastore.groups.commit_offsets("g", old, [_at(keys[0], 5)])
    new = await _claim(metastore, "g", agent)
    for late in (
        metastore.groups.save_group("g", old, _record(b"late")),
        metastore.groups.commit_offsets("g", old, [_at(keys[0], 6)]),
        metastore.groups.delete_offsets("g", old, keys),
        metastore.groups.delete_group("g", old),
        metastore.groups.save_group("never claimed", old, _record(b"")),
    ):
        with pytest.raises(FencedError, match=f"coordinator_epoch={old}"):
            await late
    await metastore.groups.release_groups({"g": old})
    assert await metastore.groups.fetch_offsets("g", None) == [_at(keys[0], 5)]
    assert await _claim(metastore, "g", agent) > new


async def test_a_group_made_again_is_safe_from_the_coordinator_of_the_one_before(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    old = await _claim(metastore, "g", agent)
    await metastore.groups.release_groups({"g": old})  # nothing is in it: forgotten
    assert await metastore.groups.list_groups() == []
    assert await _claim(metastore, "g", agent) != old
    with pytest.raises(FencedError):
        await metastore.groups.save_group("g", old, _record(b"late"))


async def test_only_a_registered_unfenced_agent_may_coordinate(metastore: PostgresMetastore) -> None:
    fenced = await metastore.cluster.register_agent(new_agent())
    live = await join(metastore)
    for agent in (fenced, live._replace(broker_epoch=live.broker_epoch - 1), live._replace(node_id=99)):
        with pytest.raises(FencedError, match=f"node_id={agent.node_id}"):
            await metastore.groups.claim_group("g", *agent)
    assert await metastore.groups.claim_group("g", *live) is not None


async def test_a_commit_that_waits_behind_a_claim_is_fenced(metastore: PostgresMetastore, metastore_url: str) -> None:
    keys = await _keys(metastore)
    epoch = await _claim(metastore, "g", await join(metastore))
    async with session(metastore_url) as claimer, session(metastore_url) as observer:
        async with claimer.transaction():
            await claimer.execute("UPDATE consumer_groups SET coordinator_epoch = coordinator_epoch + 1")
            commit = asyncio.create_task(metastore.groups.commit_offsets("g", epoch, [_at(keys[0], 5)]))
            save = asyncio.create_task(metastore.groups.save_group("g", epoch, _record(b"late")))
            await waiting(observer, 2)
        for outcome in await asyncio.gather(commit, save, return_exceptions=True):
            assert isinstance(outcome, FencedError)
    assert await metastore.groups.fetch_offsets("g", None) == []


async def test_of_many_claims_at_once_each_gets_a_separate_epoch(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    epochs = await asyncio.gather(*(_claim(metastore, "g", agent) for _ in range(8)))
    assert len(set(epochs)) == 8


async def test_of_many_agents_that_claim_at_once_one_gets_the_group(metastore: PostgresMetastore) -> None:
    agents = [await join(metastore) for _ in range(4)]
    claims = await asyncio.gather(*(metastore.groups.claim_group("g", *agent) for agent in agents))
    assert sum(claim is not None for claim in claims) == 1


async def test_groups_are_listed_once_they_are_more_than_claimed(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    agent = await join(metastore)
    epochs = {group_id: await _claim(metastore, group_id, agent) for group_id in ("a", "b", "c")}
    await metastore.groups.save_group("a", epochs["a"], _record(b"x"))
    await metastore.groups.commit_offsets("b", epochs["b"], [_at(keys[0], 5)])
    a, b = (
        GroupListing("a", GroupKind.CLASSIC, "Stable", "consumer"),
        GroupListing("b", GroupKind.CLASSIC, "Empty", ""),
    )
    assert await metastore.groups.list_groups() == [a, b]
    assert await metastore.groups.list_groups(["b", "c", "d"]) == [b]
    assert await metastore.groups.list_groups([]) == []


async def test_a_deleted_group_leaves_nothing(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    agent = await join(metastore)
    for saved, offsets, existed in (
        (True, False, True),
        (False, True, True),
        (True, True, True),
        (False, False, False),
    ):
        epoch = await _claim(metastore, "g", agent)
        if saved:
            await metastore.groups.save_group("g", epoch, _record(b"x", "Empty"))
        if offsets:
            await metastore.groups.commit_offsets("g", epoch, [_at(key, 5) for key in keys])
        assert await metastore.groups.delete_group("g", epoch) is existed
        assert await metastore.groups.list_groups() == []
        assert await metastore.groups.fetch_offsets("g", None) == []
        with pytest.raises(FencedError):
            await metastore.groups.delete_group("g", epoch)


async def test_positions_are_deleted_one_by_one(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    epoch = await _claim(metastore, "g", await join(metastore))
    await metastore.groups.commit_offsets("g", epoch, [_at(key, 5) for key in keys[:2]])
    await metastore.groups.delete_offsets("g", epoch, [keys[0], keys[2]])
    await metastore.groups.delete_offsets("g", epoch, [keys[0]])
    assert await metastore.groups.fetch_offsets("g", None) == [_at(keys[1], 5)]


async def test_positions_are_stored_replaced_and_fetched(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    agent = await join(metastore)
    g, h = await _claim(metastore, "g", agent), await _claim(metastore, "h", agent)
    assert await metastore.groups.commit_offsets("g", g, [_at(keys[1], 7, "note"), _at(keys[0], 5)]) == [True, True]
    assert await metastore.groups.commit_offsets("g", g, [_at(keys[0], 6, "\N{SNOWMAN}\0")]) == [True]
    await metastore.groups.commit_offsets("h", h, [_at(keys[2], 1)])

    assert await metastore.groups.fetch_offsets("g", None) == [
        _at(keys[0], 6, "\N{SNOWMAN}\0"),
        _at(keys[1], 7, "note"),
    ]
    assert await metastore.groups.fetch_offsets("g", [keys[2], keys[1]]) == [_at(keys[1], 7, "note")]
    assert await metastore.groups.fetch_offsets("g", []) == []
    assert await metastore.groups.fetch_offsets("unknown", None) == []


async def test_unknown_partitions_are_refused_one_by_one_and_the_rest_is_stored(
    metastore: PostgresMetastore,
) -> None:
    keys = await _keys(metastore)
    epoch = await _claim(metastore, "g", await join(metastore))
    unknown = keys[-1] + 1
    answers = await metastore.groups.commit_offsets("g", epoch, [_at(unknown, 1), _at(keys[0], 5), _at(unknown + 1, 1)])
    assert answers == [False, True, False]
    assert await metastore.groups.fetch_offsets("g", None) == [_at(keys[0], 5)]
    assert await metastore.groups.commit_offsets("g", epoch, []) == []


async def test_of_two_positions_of_one_partition_in_a_call_the_last_counts(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    epoch = await _claim(metastore, "g", await join(metastore))
    assert await metastore.groups.commit_offsets("g", epoch, [_at(keys[0], 5), _at(keys[0], 4)]) == [True, True]
    assert await metastore.groups.fetch_offsets("g", None) == [_at(keys[0], 4)]


async def test_a_call_with_one_impossible_position_stores_none(metastore: PostgresMetastore) -> None:
    keys = await _keys(metastore)
    epoch = await _claim(metastore, "g", await join(metastore))
    with pytest.raises(InvalidError):
        await metastore.groups.commit_offsets("g", epoch, [_at(keys[0], 5), _at(keys[1], 2**63)])
    assert await metastore.groups.fetch_offsets("g", None) == []


async def test_commits_of_overlapping_partitions_in_any_order_do_not_deadlock(
    metastore: PostgresMetastore, raw: Session
) -> None:
    keys = await _keys(metastore, 40)
    epoch = await _claim(metastore, "g", await join(metastore))
    calls = [
        metastore.groups.commit_offsets("g", epoch, [_at(key, number) for key in (keys if number % 2 else keys[::-1])])
        for number in range(20)
    ]
    assert all(all(answers) for answers in await asyncio.gather(*calls))
    assert await rows(raw, "SELECT count(*) FROM group_offsets") == [(40,)]


@pytest.mark.parametrize("operation", ["topic", "group", "positions"])
async def test_every_removal_of_offsets_locks_them_in_one_order(
    metastore: PostgresMetastore, metastore_url: str, operation: str
) -> None:
    """By partition, in any order of writing: a topic's deletion and a group's once ended in a deadlock."""
    agent, keys = await join(metastore), await _keys(metastore, 2)
    topic_id = (await load_image(metastore.cluster)).topics_by_name["events"].topic_id
    epoch = await _claim(metastore, "g", agent)
    await metastore.groups.save_group("g", epoch, _record(b"saved", "Empty"))
    for key in reversed(keys):
        await metastore.groups.commit_offsets("g", epoch, [_at(key, 1)])
    async with session(metastore_url) as gate, session(metastore_url) as other:
        await gate.execute("BEGIN")
        await rows(gate, "SELECT 1 FROM group_offsets WHERE partition_key = %s FOR UPDATE", keys[0])
        removals: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "topic": lambda: delete(metastore, topic_id),
            "group": lambda: metastore.groups.delete_group("g", epoch),
            "positions": lambda: metastore.groups.delete_offsets("g", epoch, keys),
        }
        removing = asyncio.create_task(removals[operation]())
        await waiting(other, 1)
        free = "SELECT partition_key FROM group_offsets WHERE group_id = 'g' FOR UPDATE SKIP LOCKED"
        assert await rows(other, free) == [(keys[1],)], "it holds a later one while it waits for an earlier"
        await gate.execute("COMMIT")
        await removing
    assert await metastore.groups.fetch_offsets("g", None) == []
