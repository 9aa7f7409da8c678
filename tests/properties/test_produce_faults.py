"""After failures at any time, the answers to clients about their batches are true.

Each run replays from its seed: clients, faults and their interleaving follow from it alone.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.produce import files
from tests.agent.produce.produce_world import ProduceWorld
from tests.properties.produce_faults import (
    PARTITIONS,
    POISON,
    TOPIC,
    UNKNOWN,
    IdempotentClient,
    PlainClient,
    Sent,
    UnreliableMetastore,
    UnreliableStore,
    raise_leader_epochs,
)
from tests.seeds import examples
from tests.storage.batches import plain_batch

EXAMPLES = 12


class Run:
    """One seeded life of an agent: clients send, everything fails at a rate, then all is let come to rest."""

    def __init__(self, seed: int, store_rate: float, metastore_rate: float) -> None:
        self.rng = random.Random(seed)
        self.world = ProduceWorld(seed=seed, upload_parallelism=4)
        self.world.create_topic(TOPIC, PARTITIONS)
        self.world.create_topic(POISON)
        self.world.store = self.store = UnreliableStore(self.world, self.rng, store_rate)
        self.world.metastore = self.metastore = UnreliableMetastore(self.world, self.rng, metastore_rate)
        self.world.on_fenced = self.metastore.register_again
        self.plain = [PlainClient(self.world, self.rng, f"plain{n}") for n in range(2)]
        self.idempotent = [
            IdempotentClient(self.world, self.rng, 100 + n, partition)
            for n, partition in enumerate(self.rng.choices(range(PARTITIONS), k=3))
        ]

    async def live(self, *, poison: bool = False) -> None:
        """Start, send, and wait until every client has its answers and every late call has happened."""
        async with self.world:
            await self.world.clock.run(self._send(poison))
            await self.world.clock.run(self.world.pipeline.drain())
            await self.world.clock.run(_all_of(self.metastore.late))
            assert self.world.metric("files_in_flight") == 0
            self.logs = [await self.world.log_of(self._key(index)) for index in range(PARTITIONS)]

    async def _send(self, poison: bool) -> None:
        healing = asyncio.create_task(self._heal_after(30.0))
        work = [client.run(14) for client in self.plain] + [client.run(10) for client in self.idempotent]
        work.append(raise_leader_epochs(self.world, self.rng, 2))
        if poison:
            work.append(self._poison())
        await asyncio.gather(*work)
        healing.cancel()

    async def _heal_after(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)
        self.store.rate = self.metastore.rate = 0.0

    async def _poison(self) -> None:
        for _ in range(4):
            await self.world.clock.sleep(self.rng.uniform(0.0, 0.6))
            answers = await self.world.produce(self.world.connect(), {POISON: {0: plain_batch(1)}}, timeout_ms=20_000)
            assert answers is not None
            assert answers[POISON, 0].error in ("kafka_storage_error", UNKNOWN)

    def _key(self, index: int) -> int:
        key = self.world.view.head.topics_by_name[TOPIC].key(index)
        assert key is not None
        return key

    def clients(self) -> list[PlainClient | IdempotentClient]:
        return [*self.plain, *self.idempotent]

    # -- what must hold afterwards

    def stored(self, index: int) -> list[bytes]:
        return [batch.data for batch in self.logs[index]]

    def check_books(self) -> None:
        """No acknowledged batch is missing, none is stored twice, and nothing else is stored."""
        books = [entry for client in self.clients() for entry in client.books]
        for index in range(PARTITIONS):
            stored = self.stored(index)
            assert len(set(stored)) == len(stored)
            assert set(stored) <= {entry.data for entry in books if entry.partition == index}
            at = {batch.base_offset: batch.data for batch in self.logs[index]}
            assert [entry for entry in books if entry.partition == index and _lost(entry, at)] == []

    def check_refusals(self) -> None:
        """A batch that its client may take for not stored is not stored, and none of what waited behind it."""
        for client in self.plain:
            for index in range(PARTITIONS):
                stored = set(self.stored(index))
                mine = [entry for entry in client.books if entry.partition == index]
                refused = [entry for entry in mine if entry.error not in ("none", UNKNOWN)]
                assert not [entry for entry in refused if entry.data in stored]
                for entry in refused:
                    behind = mine[mine.index(entry) + 1 :]
                    waiting = [later for later in behind if entry.alone and later.sent_at < entry.answered_at]
                    assert not [later for later in waiting if later.data in stored]

    def check_order(self) -> None:
        """Each stream is stored in the order in which it was sent; an idempotent one without a gap."""
        for client in self.clients():
            for index in range(PARTITIONS):
                sent = [entry.data for entry in client.books if entry.partition == index]
                mine = set(sent)
                stored = [data for data in self.stored(index) if data in mine]
                assert stored == [data for data in sent if data in set(stored)]
        for idempotent in self.idempotent:
            assert {entry.data for entry in idempotent.books} <= set(self.stored(idempotent.partition))


def _lost(entry: Sent, at: dict[int, bytes]) -> bool:
    return entry.error == "none" and at.get(entry.base_offset) != entry.data


async def _all_of(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _live(seed: int, store_rate: float, metastore_rate: float, *, poison: bool = False) -> Run:
    async def live() -> Run:
        run = Run(seed, store_rate, metastore_rate)
        await run.live(poison=poison)
        return run

    return asyncio.run(live())


@pytest.mark.requirement("W3", "W4")
@given(
    seed=st.integers(0, 2**32), store_rate=st.sampled_from([0.02, 0.1, 0.3]), metastore_rate=st.sampled_from([0.2, 0.8])
)
@settings(max_examples=examples(EXAMPLES))
def test_the_answers_to_clients_are_true(seed: int, store_rate: float, metastore_rate: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SHARES_CALL_S", 3.0)  # well below the age at which this sweeper condemns
        run = _live(seed, store_rate, metastore_rate)
    run.check_books()
    run.check_refusals()
    run.check_order()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(EXAMPLES // 2))
def test_poison_files_affect_no_other_file(seed: int) -> None:
    run = _live(seed, 0.05, 0.2, poison=True)
    run.check_books()
    run.check_refusals()
    run.check_order()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(3))
def test_without_faults_everything_is_acknowledged_at_once(seed: int) -> None:
    run = _live(seed, 0.0, 0.0)
    run.check_books()
    run.check_order()
    refused_by_epoch = {"none", "not_leader_or_follower"}
    assert {entry.error for client in run.plain for entry in client.books} <= refused_by_epoch
