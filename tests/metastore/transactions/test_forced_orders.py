"""Orders of two or three sessions that random ones seldom meet: each shows what one lock or one comparison is for.

Place: next to test_interleavings.py. Every order is played on the functions as they are, and with its bug planted.
Invariant checked: offsets are given once, in every partition and to every batch and marker; and an end leaves no time
for its transaction: what comes later for the old epoch is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from tests.metastore.commit_scenes import COMMIT_LOCK_CLASS, batch
from tests.metastore.lock_gates import settled
from tests.metastore.sessions import rows, session
from tests.metastore.sql_sources import plant
from tests.metastore.transactions.transaction_scenes import (
    Producer,
    claimed_group,
    log_of,
    open_transactions,
    position,
    read,
)

GROUP = "g"


class Line:
    """Calls that begin one after the other: each waits for a lock, or is done, before the next one begins."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tasks: list[asyncio.Task[object]] = []

    async def join(self, call: Awaitable[object]) -> asyncio.Task[object]:
        """Begin a call."""
        self._tasks.append(asyncio.ensure_future(call))  # type: ignore[arg-type]
        await self.settle()
        return self._tasks[-1]

    async def settle(self) -> None:
        """Let each go as far as it can."""
        async with session(self._url) as watcher:
            await settled(watcher, self._tasks)

    @asynccontextmanager
    async def held(self, *locks: str) -> AsyncIterator[None]:
        """Another session has these locks while the block runs; then each call continues as far as it can."""
        async with session(self._url) as holder:
            async with holder.transaction():
                for lock in locks:
                    await rows(holder, lock)
                yield
            await self.settle()


def _shard_lock(shard: int) -> str:
    return f"SELECT pg_advisory_xact_lock({COMMIT_LOCK_CLASS}, {shard})"


def _feed_row(shard: int) -> str:
    return f"SELECT FROM commit_shards WHERE shard = {shard} FOR UPDATE"


async def _offsets_are_given_once(producer: Producer, partition: int, entries: int) -> None:
    found = await read(producer.scene, partition)
    assert len(await log_of(producer.scene, partition)) == entries
    end = 0
    for extent in found.extents:
        assert extent.base_offset == end
        end = extent.last_offset + 1
    assert end == found.high_watermark


async def a_batch_is_committed_during_an_end(store: PostgresMetastore, url: str) -> None:
    """An end waits for a commit in a shard of its transaction."""
    producer = await open_transactions(store)
    await producer.send(0)
    line, scene = Line(url), producer.scene
    async with line.held(_feed_row(scene.shard(0))):
        commit = await line.join(scene.outcomes(batch(scene.keys[0])))
        end = await line.join(producer.end())
    assert (await commit, await end) == ([(BatchOutcome.APPENDED, 5)], TransactionVerdict.DONE)
    await _offsets_are_given_once(producer, 0, 3)


async def a_partition_is_added_while_an_end_waits(store: PostgresMetastore, url: str) -> None:
    """The end has the locks of the partitions that it found: it looks again, as the version is another one."""
    producer = await open_transactions(store)
    await producer.send(0)
    line, scene = Line(url), producer.scene
    async with line.held(_shard_lock(scene.shard(0))):
        end = await line.join(producer.ask_end(producer.who, commits=True))
        assert await producer.send(1) == [(BatchOutcome.APPENDED, 0)]
        other = line.held(_feed_row(scene.shard(1)))
        await other.__aenter__()
        commit = await line.join(scene.outcomes(batch(scene.keys[1])))
    await other.__aexit__(None, None, None)
    await asyncio.gather(commit, end)
    await _offsets_are_given_once(producer, 0, 2)
    await _offsets_are_given_once(producer, 1, 3)


async def a_partition_is_added_during_an_end(store: PostgresMetastore, url: str) -> None:
    """A batch for another partition is judged when the end is over: it is of an old epoch then."""
    producer = await open_transactions(store)
    await producer.send(0)
    line, scene = Line(url), producer.scene
    async with line.held(_feed_row(scene.shard(0))):
        await line.join(producer.ask_end(producer.who, commits=True))
        late = await line.join(producer.send(1))
    assert await late == [(BatchOutcome.PRODUCER_FENCED, -1)]


async def offsets_come_late(store: PostgresMetastore, url: str) -> None:
    """A transaction has ended, and the next one has the same group, before offsets of the first are stored."""
    producer = await open_transactions(store)
    epoch, keys, old = await claimed_group(producer.scene, GROUP), producer.scene.keys, producer.who
    await producer.send(0)

    def add(partition: int, offset: int) -> Awaitable[object]:
        positions = [position(keys[partition], offset)]
        return store.transactions.add_pending_offsets("copy", producer.who, GROUP, epoch, positions, adds_group=True)

    line = Line(url)
    async with line.held(f"SELECT FROM partitions WHERE partition_key = {keys[0]} FOR UPDATE"):
        late = await line.join(add(0, 111))
        assert await producer.end() is TransactionVerdict.DONE
        assert producer.who != old
        await add(1, 222)
    assert (await late).verdict is TransactionVerdict.FENCED  # type: ignore[attr-defined]
    assert await producer.end() is TransactionVerdict.DONE
    assert {each.offset for each in await store.groups.fetch_offsets(GROUP, None)} == {222}


Scenario = Callable[[PostgresMetastore, str], Awaitable[None]]
BUGS: dict[str, tuple[Scenario, str, str, str]] = {
    "shards are not locked": (
        a_batch_is_committed_during_an_end,
        "end_transaction",
        "    PERFORM lock_shards(array_agg(DISTINCT commit_shard(partition_key, v_shards)))\n"
        "       FROM transaction_partitions WHERE producer_id = v_producer;",
        "",
    ),
    "an added partition keeps the version": (
        a_partition_is_added_while_an_end_waits,
        "judge_transactions",
        "           version = version + 1\n",
        "           version = version\n",
    ),
    "a commit does not hold the transaction it adds to": (
        a_partition_is_added_during_an_end,
        "judge_transactions",
        "ORDER BY producer_id FOR NO KEY UPDATE;",
        "ORDER BY producer_id;",
    ),
    "offsets keep the version": (
        offsets_come_late,
        "add_pending_offsets",
        "WHERE transactional_id = p_transactional_id AND version = p_version AND state",
        "WHERE transactional_id = p_transactional_id AND state",
    ),
}
"""What is wrong -> (the order that shows it, function, right text, wrong text)."""


@pytest.mark.parametrize("scenario", [scenario for scenario, *_ in BUGS.values()], ids=lambda each: each.__name__)
async def test_an_order_leaves_a_history_of_transactions(
    metastore: PostgresMetastore, metastore_url: str, scenario: Scenario
) -> None:
    await scenario(metastore, metastore_url)


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_caught(metastore: PostgresMetastore, metastore_url: str, bug: str) -> None:
    scenario, function, right, wrong = BUGS[bug]
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, HeadraceError)) as caught:
        await scenario(metastore, metastore_url)
    print(f"{bug}: {caught.value!r}")
