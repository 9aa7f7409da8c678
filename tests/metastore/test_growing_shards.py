"""The count of commit shards grows while agents commit and readers follow: nothing is lost, doubled or out of order.

Real sessions on a real server. Growth waits for the commits that are under way, and commits that begin meanwhile wait
for growth; so no two commits of a partition hold the locks of different counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.agents import AGENT_FEATURES, COMMIT_SHARDS, FeatureRange
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import Extent
from headrace.metastore.keys import commit_shard
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError, UnsupportedFeatureError
from tests.metastore.commit_scenes import appended, batch, file_of, open_scene, pairs
from tests.metastore.sessions import Session, join, new_agent, rows, session, waiting
from tests.metastore.sql_sources import Throwaway, broken

GROWN = 32
FINDS = (AssertionError, HeadraceError)


async def grow(store: PostgresMetastore, shards: int = GROWN) -> bool:
    return await store.cluster.grow_commit_shards(shards, await store.cluster.metadata_head())


async def test_partitions_heads_and_metadata_have_the_new_count(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore, partitions=40)
    opened_with = metastore.commit_shards
    assert (await load_image(metastore.cluster)).commit_shards(opened_with) == opened_with == 8
    assert await grow(metastore)
    image = await load_image(metastore.cluster)
    assert (image.commit_shards(opened_with), await metastore.cluster.count_commit_shards()) == (GROWN, GROWN)
    found = dict(await rows(raw, "SELECT partition_key, shard FROM partitions"))
    levels = await rows(raw, "SELECT min_level, max_level FROM features WHERE name = %s", COMMIT_SHARDS)
    assert found == {key: commit_shard(key, GROWN) for key in scene.keys}
    assert levels == [(1, GROWN)]
    assert (await metastore.index.poll_feed({})).heads == dict.fromkeys(range(GROWN), 0)
    later = await open_scene(metastore, partitions=40)
    assert await later.outcomes(*(batch(key) for key in later.keys)) == appended(*[0] * 40)
    heads = (await metastore.index.poll_feed({})).heads
    assert {shard for shard, head in heads.items() if head} == set(range(GROWN)), "new topics use all of them"


@pytest.mark.parametrize("shards", [4, 8, 12, 24, 0])
async def test_only_doublings_are_taken(metastore: PostgresMetastore, shards: int) -> None:
    with pytest.raises((InvalidError, UnavailableError), match="grow by doublings"):
        await grow(metastore, shards)
    assert await metastore.cluster.count_commit_shards() == 8


async def test_nothing_happens_if_the_metadata_log_has_moved_on(metastore: PostgresMetastore) -> None:
    head = await metastore.cluster.metadata_head()
    await open_scene(metastore)
    assert not await metastore.cluster.grow_commit_shards(GROWN, head)
    assert await metastore.cluster.count_commit_shards() == 8


async def test_an_agent_of_the_release_before_keeps_the_count_as_it_is(metastore: PostgresMetastore) -> None:
    """Such an agent would follow new shards from their newest row on, and miss what is before."""
    older = {name: levels for name, levels in AGENT_FEATURES.items() if name != COMMIT_SHARDS}
    registration = new_agent()
    agent = await metastore.cluster.register_agent(type(registration)(**{**_fields(registration), "features": older}))
    with pytest.raises(UnsupportedFeatureError, match=COMMIT_SHARDS):
        change_feature(await load_image(metastore.cluster), COMMIT_SHARDS, GROWN, allow_downgrade=False)
    await metastore.cluster.unregister_agent(*agent)
    change_feature(await load_image(metastore.cluster), COMMIT_SHARDS, GROWN, allow_downgrade=False)
    assert await grow(metastore)
    with pytest.raises(UnsupportedFeatureError, match=COMMIT_SHARDS):
        await metastore.cluster.register_agent(type(registration)(**{**_fields(registration), "features": older}))
    assert await join(metastore)


def _fields(registration: object) -> dict[str, object]:
    return {name: getattr(registration, name) for name in registration.__dataclass_fields__}  # type: ignore[attr-defined]


def test_the_count_does_not_go_down() -> None:
    image = MetadataImage(features={COMMIT_SHARDS: FeatureRange(1, GROWN)})
    with pytest.raises(InvalidError, match="cannot go down"):
        change_feature(image, COMMIT_SHARDS, 8, allow_downgrade=True)


async def growth_between_two_commits(store: PostgresMetastore, url: str) -> None:
    """A commit is under way, with its shard's lock; then come growth, and another commit of the same partition."""
    scene = await open_scene(store, partitions=32)
    place = next(i for i, key in enumerate(scene.keys) if commit_shard(key, GROWN) == 9)
    key, other = scene.keys[place], await join(store)
    async with session(url) as watcher, session(url) as gate:
        await gate.execute("BEGIN")
        await rows(gate, "SELECT 1 FROM commit_shards WHERE shard = 1 FOR UPDATE")
        first = asyncio.create_task(scene.commit(file_of([batch(key, 0)])))
        await waiting(watcher, 1)
        growth = asyncio.create_task(grow(store))
        await asyncio.wait([growth], timeout=0.1)
        second = asyncio.create_task(scene.commit(file_of([batch(key, 0), batch(key, 5)]), by=other))
        await asyncio.wait([second], timeout=0.1)
        await gate.execute("COMMIT")
    answers = [pairs(answer.batches) for task in (first, second) for answer in await task]
    assert await growth
    assert answers == [appended(0), [(BatchOutcome.DUPLICATE, 0), *appended(5)]]
    assert await scene.read(place) == [(0, 4), (5, 9)]


async def test_growth_waits_for_commits_and_they_for_it(metastore: PostgresMetastore, metastore_url: str) -> None:
    await growth_between_two_commits(metastore, metastore_url)


async def growth_under_load(store: PostgresMetastore, url: str, seed: int) -> None:
    """Agents commit to common partitions, readers follow in small steps, one of them every other shard, and the count
    grows twice."""
    rng = random.Random(seed)
    scene = await open_scene(store, partitions=24)
    agents = [scene.agent, await join(store), await join(store)]
    index, part = TailIndex(store.commit_shards), TailIndex(store.commit_shards)
    part.wanted = lambda shards: range(0, shards, 2)
    forgotten: list[Extent] = []
    for each in (index, part):
        each.on_forgotten = forgotten.extend
        each.apply(await store.index.poll_feed(each.heads))
    known: dict[int, list[Extent]] = {key: [] for key in scene.keys}
    running = True

    async def commit(number: int) -> None:
        sequences: Iterator[int] = iter(range(0, 5_000, 5))
        while running:
            sequence = next(sequences)
            keys = sorted(rng.sample(scene.keys, rng.randint(1, 12)))
            answers = await scene.commit(
                file_of([batch(key) for key in keys] + [batch(scene.keys[0], sequence, producer=1000 + number)]),
                by=agents[number],
            )
            outcomes = {one.outcome for answer in answers for one in answer.batches}
            assert outcomes == {BatchOutcome.APPENDED}, outcomes

    async def follow() -> None:
        while running:
            each = rng.choice((index, part))
            each.apply(await store.index.poll_feed(each.heads))
            await asyncio.sleep(rng.random() / 100)

    tasks = [asyncio.create_task(commit(number)) for number in range(len(agents))] + [asyncio.create_task(follow())]
    for shards in (16, 64):
        await asyncio.sleep(0.15)
        await _grown(store, shards)
    await asyncio.sleep(0.15)
    running = False
    await asyncio.gather(*tasks)
    await _follow_to_the_end(store, index, part)
    for extent in index.extents():
        known[extent.partition_key].append(extent)
    stored_by_key: dict[int, list[tuple[int, int]]] = {key: [] for key in scene.keys}
    async with session(url) as raw:
        of_all = "SELECT partition_key, base_offset, last_offset FROM extents ORDER BY 1, 2"
        for key, base_offset, last_offset in await rows(raw, of_all):
            if key in stored_by_key:
                stored_by_key[key].append((base_offset, last_offset))
    for key, stored in stored_by_key.items():
        assert [(e.base_offset, e.last_offset) for e in known[key]] == stored, "the reader has what is stored"
        assert [base for base, _ in stored[1:]] == [last + 1 for _, last in stored[:-1]], "offsets have no gap"
    assert (forgotten, index.generation, part.generation) == ([], 1, 1), "the readers forgot nothing"
    async with session(url) as raw:
        wrong = await rows(
            raw, "SELECT partition_key FROM partitions WHERE shard <> commit_shard(partition_key, 64::smallint)"
        )
    assert wrong == []


async def _follow_to_the_end(store: PostgresMetastore, index: TailIndex, part: TailIndex) -> None:
    """Both readers; the one of every other shard has what the other one has of these."""
    for each in (index, part):
        while not each.is_at_end(page := await store.index.poll_feed(each.heads)):
            each.apply(page)
    of_even_shards = [extent for extent in index.extents() if commit_shard(extent.partition_key, 64) % 2 == 0]
    assert sorted(part.extents()) == sorted(of_even_shards) != []


async def _grown(store: PostgresMetastore, shards: int) -> None:
    for _ in range(100):
        try:
            if await grow(store, shards):
                return
        except UnavailableError:  # a commit was under way for too long, on a busy machine
            continue
    raise AssertionError("the metastore was busy each time")


@pytest.mark.requirement("W1", "W4")
@pytest.mark.parametrize("seed", range(2))
async def test_growth_under_load_loses_nothing(metastore: PostgresMetastore, metastore_url: str, seed: int) -> None:
    await growth_under_load(metastore, metastore_url, seed)


EXCLUSIVE = "PERFORM pg_advisory_xact_lock(life_lock(), 0);"
BUGS = {
    "growth does not wait for commits": [(EXCLUSIVE, "")],
    "growth under the shared lock": [(EXCLUSIVE, EXCLUSIVE.replace("lock(", "lock_shared(", 1))],
    "partitions keep their shards": [
        ("     WHERE shard <> commit_shard(partition_key, p_shards);", "     WHERE false;"),
    ],
    "new shards have no heads": [
        ("generate_series(v_shards, p_shards - 1)", "generate_series(v_shards, v_shards)"),
    ],
}


@pytest.mark.parametrize("bug", BUGS)
async def test_planted_bugs_are_found(bug: str, throwaway: Throwaway) -> None:
    async def tell(scenario: int) -> None:
        wrong = broken("grow_commit_shards", BUGS[bug])
        async with throwaway.store(wrong, sessions=8) as (url, store):
            if scenario == 0:
                await growth_between_two_commits(store, url)
            else:
                await growth_under_load(store, url, scenario)

    for scenario in range(3):
        try:
            await tell(scenario)
        except FINDS:
            return
    pytest.fail(f"not found: {bug}")
