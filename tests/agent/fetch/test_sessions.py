"""Incremental fetch sessions (KIP-227), over the wire and under pressure."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.sessions import CAPACITY, EPOCH_MAX, EVICTABLE_SECONDS, FetchSessions
from headrace.protocol.fetch_codec import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from headrace.protocol.request import ClientConnection
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.manual_clock import ManualClock


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_later_fetches_name_only_what_changed_and_hear_only_news(world: World, version: int) -> None:
    key, quiet = world.create_topic("t", 2)
    first = await world.fetch({key: 0, quiet: 0}, session_epoch=0, version=version)
    assert set(first.partitions) == {key, quiet}
    assert first.session_id > 0
    session = {"session_id": first.session_id, "version": version}

    nothing = await world.fetch({}, session_epoch=1, **session)
    await world.append(key, b"a", own=True)
    await world.clock.advance(0.1)
    news = await world.fetch({}, session_epoch=2, **session)
    moved = await world.fetch({key: 1}, session_epoch=3, **session)

    assert (nothing.partitions, nothing.session_id) == ({}, first.session_id)
    assert set(news.partitions) == {key}
    assert split_sent(news.records(key)) == expected(world.live[key], 0)
    assert moved.partitions == {}


async def test_a_partition_taken_out_is_served_no_more_and_the_last_one_ends_the_session(world: World) -> None:
    key, other = world.create_topic("t", 2)
    first = await world.fetch({key: 0, other: 0}, session_epoch=0)
    await world.append(key, b"a")
    await world.append(other, b"b")
    await world.clock.advance(0.1)

    one = await world.fetch({}, session_epoch=1, session_id=first.session_id, forget=[key])
    none = await world.fetch({}, session_epoch=2, session_id=first.session_id, forget=[other])
    gone = await world.fetch({}, session_epoch=3, session_id=first.session_id)

    assert set(one.partitions) == {other}
    assert (none.partitions, none.session_id) == ({}, 0)
    assert gone.error == ErrorCode.fetch_session_id_not_found


async def test_a_waiting_session_hears_of_a_partition_added_later(world: World) -> None:
    key, other = world.create_topic("t", 2)
    first = await world.fetch({key: 0}, session_epoch=0)

    added = await world.fetch({other: 0}, session_epoch=1, session_id=first.session_id)
    await world.append(other, b"b")
    await world.clock.advance(0.1)
    news = await world.fetch({}, session_epoch=2, session_id=first.session_id, max_wait_ms=100)

    assert set(added.partitions) == {other}
    assert set(news.partitions) == {other}


async def test_an_error_is_repeated_until_it_goes_away(world: World, key: int) -> None:
    first = await world.fetch({key: 99}, session_epoch=0)

    again = await world.fetch({}, session_epoch=1, session_id=first.session_id)
    healed = await world.fetch({key: 0}, session_epoch=2, session_id=first.session_id)

    assert first.code(key) == again.code(key) == ErrorCode.offset_out_of_range
    assert healed.code(key) == 0


async def test_wrong_epochs_unknown_ids_and_changed_naming_are_refused(world: World, key: int) -> None:
    first = await world.fetch({key: 0}, session_epoch=0)

    wrong = await world.fetch({}, session_epoch=5, session_id=first.session_id)
    unknown = await world.fetch({}, session_epoch=1, session_id=first.session_id % EPOCH_MAX + 1)
    by_name = await world.fetch({}, session_epoch=1, session_id=first.session_id, version=12)

    assert (wrong.error, wrong.session_id, wrong.partitions) == (ErrorCode.invalid_fetch_session_epoch, 0, {})
    assert unknown.error == ErrorCode.fetch_session_id_not_found
    assert by_name.error == ErrorCode.fetch_session_topic_id_error


async def test_a_full_fetch_closes_the_session_it_names(world: World, key: int) -> None:
    first = await world.fetch({key: 0}, session_epoch=0)

    last = await world.fetch({key: 0}, session_epoch=-1, session_id=first.session_id)
    after = await world.fetch({}, session_epoch=1, session_id=first.session_id)

    assert (last.error, last.session_id, set(last.partitions)) == (0, 0, {key})
    assert after.error == ErrorCode.fetch_session_id_not_found


def sessions_at(clock: ManualClock, capacity: int = CAPACITY) -> FetchSessions:
    return FetchSessions(clock, random.Random(1), FetchMetrics(CollectorRegistry()), capacity)


def connection(client: str = "10.0.0.1", principal: str | None = None) -> ClientConnection:
    return ClientConnection(1, f"{client}:50000", principal)


def _full(session_id: int = 0) -> FetchRequest:
    return FetchRequest(0, 1, 1, 0, [FetchTopic("t", None, [FetchPartition(0, 0, 1)])], session_id, 0)


def test_a_full_cache_gives_way_only_to_idle_sessions() -> None:
    here = connection()
    clock = ManualClock()
    sessions = sessions_at(clock, capacity=6)
    ids = [sessions.open(_full(), here, by_id=False).session_id for _ in range(3)]
    assert len(set(ids)) == 3

    refused = sessions.open(_full(), here, by_id=False)
    clock.jump(EVICTABLE_SECONDS - 1)
    kept = sessions.open(FetchRequest(0, 1, 1, 0, [], ids[0], 1), here, by_id=False)
    clock.jump(1)
    taken = sessions.open(_full(), here, by_id=False)

    assert (refused.session_id, refused.error, len(refused.wanted)) == (0, 0, 1)
    assert kept.session_id == ids[0]
    assert taken.session_id > 0
    assert sessions.open(FetchRequest(0, 1, 1, 0, [], ids[1], 1), here, by_id=False).error
    assert not sessions.open(FetchRequest(0, 1, 1, 0, [], ids[0], 2), here, by_id=False).error


def test_epochs_wrap_to_one() -> None:
    here = connection()
    sessions = sessions_at(ManualClock())
    session_id = sessions.open(_full(), here, by_id=False).session_id
    sessions._sessions[session_id].next_epoch = EPOCH_MAX

    last = sessions.open(FetchRequest(0, 1, 1, 0, [], session_id, EPOCH_MAX), here, by_id=False)
    wrapped = sessions.open(FetchRequest(0, 1, 1, 0, [], session_id, 1), here, by_id=False)

    assert (last.error, wrapped.error) == (0, 0)


def test_memory_for_sessions_is_bounded() -> None:
    clients = {client: connection(client) for client in "abc"}
    sessions = sessions_at(ManualClock())
    for client in ("a", "b", "c"):
        opened = [sessions.open(_full(), clients[client], by_id=False).session_id for _ in range(CAPACITY)]
        expected = 0 if client == "c" else CAPACITY // 2
        assert sum(session_id > 0 for session_id in opened) == expected, "at most half for one client"


def test_idle_sessions_of_a_client_make_room_for_its_own_only() -> None:
    a, b = connection("a"), connection("b")
    clock = ManualClock()
    sessions = sessions_at(clock, capacity=4)
    others = [sessions.open(_full(), b, by_id=False).session_id for _ in range(2)]
    own = [sessions.open(_full(), a, by_id=False).session_id for _ in range(2)]
    clock.jump(EVICTABLE_SECONDS)
    assert sessions.open(_full(), a, by_id=False).session_id > 0
    assert all(session_id in sessions._sessions for session_id in others)
    assert own[0] not in sessions._sessions


def _of(partitions: int, session_id: int = 0, epoch: int = 0, first: int = 0) -> FetchRequest:
    wanted = [FetchPartition(first + index, 0, 1) for index in range(partitions)]
    return FetchRequest(0, 1, 1, 0, [FetchTopic("t", None, wanted)], session_id, epoch)


@pytest.mark.requirement("X7")
def test_partitions_in_sessions_are_bounded_and_no_client_has_more_than_half() -> None:
    clients = {client: connection(client) for client in "abc"}
    registry = CollectorRegistry()
    sessions = FetchSessions(ManualClock(), random.Random(1), FetchMetrics(registry), partitions_max=100)

    def opened(client: str, partitions: int = 10) -> int:
        return sessions.open(_of(partitions), clients[client], by_id=False).session_id

    greedy = [opened("a") for _ in range(30)]
    assert sum(session_id > 0 for session_id in greedy) == 5
    assert opened("b", 50) > 0, "another client has its half"
    assert opened("c") == 0
    assert registry.get_sample_value("headrace_limit_reached_total", {"limit": "fetch.session.max.partitions"}) == 26
    closed = sessions.open(FetchRequest(0, 1, 1, 0, [], greedy[0], -1), clients["a"], by_id=False)
    assert not closed.error
    assert opened("c") > 0, "a session that ended gives its partitions back"


@pytest.mark.requirement("X7")
def test_a_session_that_grows_too_large_ends() -> None:
    here = connection()
    sessions = sessions_at(ManualClock())
    session_id = sessions.open(_of(6), here, by_id=False).session_id
    grown = sessions.open(_of(4, session_id, 1, first=6), here, by_id=False, session_max=10)
    assert not grown.error
    too_large = sessions.open(_of(1, session_id, 2, first=10), here, by_id=False, session_max=10)
    assert too_large.error == ErrorCode.fetch_session_id_not_found
    assert sessions.open(_of(0, session_id, 3), here, by_id=False).error == ErrorCode.fetch_session_id_not_found


@pytest.mark.requirement("X7")
def test_a_long_name_counts_as_many_partitions() -> None:
    """A client may name topics that do not exist, by names of any length."""
    registry, here = CollectorRegistry(), connection()
    sessions = FetchSessions(ManualClock(), random.Random(1), FetchMetrics(registry), partitions_max=100)

    def asked(name: str, session_id: int = 0, epoch: int = 0, *, forgets: bool = False) -> FetchRequest:
        wanted = [] if forgets else [FetchTopic(name, None, [FetchPartition(0, 0, 1)])]
        forgotten = [ForgottenTopic(name, None, [0])] if forgets else []
        return FetchRequest(0, 1, 1, 0, wanted, session_id, epoch, forgotten)

    assert sessions.open(asked("x" * 249), here, by_id=False).session_id > 0
    assert sessions.partitions == 2
    assert sessions.open(asked("x" * 50_000), here, by_id=False).session_id == 0
    session_id = sessions.open(asked("y" * 2_560), here, by_id=False).session_id
    assert sessions.partitions == 2 + 11
    sessions.open(asked("z" * 5_000, session_id, 1), here, by_id=False)
    sessions.open(asked("z" * 5_000, session_id, 2), here, by_id=False)
    assert sessions.partitions == 2 + 11 + 20, "named twice, kept once"
    sessions.open(asked("z" * 5_000, session_id, 3, forgets=True), here, by_id=False)
    assert sessions.partitions == 2 + 11
    sessions.open(asked("z" * 50_000, session_id, 4), here, by_id=False)
    assert sessions.partitions == 2, "too large: it ended"
