"""The objects of transaction outcomes stay as small as the log, over any time, and with several workers in turn."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from headrace.compactor import outcomes as recording
from headrace.compactor.outcomes import OutcomeRecorder
from headrace.metastore.api.outcomes import EndedTransaction, TransactionOutcome
from headrace.metastore.recorded_objects import RecordedObject, list_recorded
from headrace.metastore.transaction_outcomes import PREFIX, list_outcomes, read_outcomes
from headrace.storage.clock import SystemClock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.patch import Patch

TOPIC = uuid.UUID(int=5)
PER_OBJECT = 200
LIVE = 400


class Log:
    """Transactions end, and retention keeps the last LIVE markers."""

    def __init__(self) -> None:
        self.named_life = 1
        self.waiting: list[EndedTransaction] = []
        self.start = self.next = self.probes = 0
        self.restored_to: int | None = None
        """The end of the log after a restore of a backup that is too old."""

    def end(self, count: int) -> None:
        for _ in range(count):
            outcome = TransactionOutcome(TOPIC, 0, 7, 0, self.next + 1, self.next, 0, commits=True)
            self.waiting.append(EndedTransaction(1, self.next, outcome))
            self.next += 1
        self.start = max(self.start, self.next - LIVE)

    async def ended_transactions(self, most: int) -> list[EndedTransaction]:
        return self.waiting[:most]

    async def forget_outcomes(self, token: Any, ended: Sequence[EndedTransaction]) -> None:
        del self.waiting[: len(ended)]

    async def markers_in_log(self, outcomes: Sequence[TransactionOutcome]) -> list[bool]:
        self.probes += len(outcomes)
        end = self.next if self.restored_to is None else self.restored_to
        return [self.start <= one.marker_offset < end for one in outcomes]


class CountingStore(MemoryStore):
    """How often it was listed."""

    lists = 0

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.lists += 1
        async for info in super().list_objects(prefix, start_after=start_after):
            yield info


class Lease:
    """Held."""

    token = None

    async def save_progress(self, text: str) -> None:
        return


class Outcomes:
    """A bucket and the workers that run the job in turn."""

    def __init__(self, workers: int) -> None:
        self.log, self.store = Log(), CountingStore(SystemClock())
        self.rng = random.Random(1)
        self.is_audited = True
        self.workers = [self.worker() for _ in range(workers)]

    def worker(self) -> OutcomeRecorder:
        return OutcomeRecorder(self.log, self.store, self.rng, self.may_delete)

    async def may_delete(self, token: Any) -> bool:
        return self.is_audited

    async def run(self, ended: int) -> None:
        self.log.end(ended)
        lease: Any = Lease()
        await self.rng.choice(self.workers).record(self.log.named_life, lease)

    async def objects(self) -> list[RecordedObject]:
        self.store.lists -= 2
        return await list_outcomes(self.store)

    async def check(self, most: int) -> None:
        """Nothing that is in the log is missing, and not much more is there."""
        stored = [one for found in await self.objects() for one in await read_outcomes(self.store, found.key)]
        assert {one.marker_offset for one in stored} >= set(range(self.log.start, self.log.next))
        assert len(stored) <= most
        assert len(await self.objects()) <= 2 * recording.JOIN_AT * 3


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ENTRIES_PER_OBJECT", PER_OBJECT)
    monkeypatch.setattr(recording, "CHECKS_PER_RUN", 2)


@pytest.mark.parametrize("ended", [1, 40, 333])
async def test_objects_hold_what_is_in_the_log(ended: int) -> None:
    world = Outcomes(1)
    runs = 400 if ended == 40 else 60
    for number in range(runs):
        await world.run(ended)
        if number % 20 == 19:
            await world.check(4 * LIVE + 2 * ended)
    assert world.store.lists == 1
    written = runs * ended
    assert world.log.probes <= (recording.CHECKS_PER_ENTRY + 3) * written + 2 * runs


async def test_what_retention_removes_goes_when_no_transaction_ends_any_more() -> None:
    world = Outcomes(1)
    for _ in range(20):
        await world.run(100)
    world.log.start = world.log.next
    for _ in range(2_000):
        await world.run(0)
    assert await world.objects() == []
    assert world.store.lists == 1


async def test_workers_with_old_lists_lose_nothing() -> None:
    world = Outcomes(3)
    for number in range(150):
        if number % 50 == 49:
            world.workers[number // 50 - 1] = world.worker()
        await world.run(40)
        await world.check(3 * 5 * LIVE)


async def test_a_new_life_is_listed_once() -> None:
    world = Outcomes(1)
    await world.run(40)
    world.log.named_life = 2
    await world.run(1)
    await world.run(1)
    assert world.store.lists == 3, "and once who took over"
    assert {found.life for found in await world.objects()} == {2}
    await world.check(LIVE)


async def lives_of_all(world: Outcomes) -> set[int]:
    """Return the life of each object, in force or not."""
    return {found.life for found in await list_recorded(world.store, PREFIX)}


async def a_wrong_restore(world: Outcomes) -> None:
    """A backup that is too old is restored and runs for some minutes; then the right one is."""
    for _ in range(40):
        await world.run(10)
    world.is_audited = False
    world.log.named_life, world.log.restored_to = 2, 100
    for _ in range(40):
        await world.run(0)
    stored = [one for found in await world.objects() for one in await read_outcomes(world.store, found.key)]
    assert {one.marker_offset for one in stored} == set(range(100)), "a rebuild shows nothing that this life undid"
    world.log.named_life, world.log.restored_to = 3, None
    for _ in range(40):
        await world.run(1)
    await world.check(3 * LIVE)
    assert await lives_of_all(world) == {1, 2, 3}
    world.is_audited = True
    await world.run(1)
    await world.check(3 * LIVE)
    assert await lives_of_all(world) == {3}


async def test_a_wrong_restore_loses_no_outcome_before_an_audit() -> None:
    await a_wrong_restore(Outcomes(1))
    await a_wrong_restore(Outcomes(3))


async def test_objects_that_a_worker_of_the_old_life_joins_meanwhile_are_taken_over_later() -> None:
    """Its server is not the metastore any more, which it finds at its next check."""
    world = Outcomes(1)
    for _ in range(recording.JOIN_AT - 1):
        await world.run(1)
    old, lease, read = world.workers[0], Lease(), MemoryStore.get
    world.log.end(1)
    world.log.named_life = 2
    new = world.worker()

    async def get(key: str, *rest: Any) -> bytes:
        world.store.get = partial(read, world.store)  # type: ignore[method-assign]
        await old.record(1, lease)  # type: ignore[arg-type]
        return await world.store.get(key, *rest)

    world.store.get = get  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="an object of an earlier life is gone"):
        await new.record(2, lease)  # type: ignore[arg-type]
    await new.record(2, lease)  # type: ignore[arg-type]
    await world.check(LIVE)
    assert {found.life for found in await world.objects()} == {2}


LIFE_BUGS = ("older objects go at once", "no life takes over", "what a life undid is believed")


@pytest.mark.parametrize("bug", LIFE_BUGS)
async def test_a_planted_bug_of_a_new_life_is_caught(bug: str, patch: Patch) -> None:
    world = Outcomes(1)

    async def yes(token: Any) -> bool:
        return True

    async def all_lives(store: MemoryStore) -> list[RecordedObject]:
        return await list_recorded(store, PREFIX)

    async def not_again(*_: Any) -> int:
        return 2

    match bug:
        case "older objects go at once":
            patch.replace(world.workers[0], "_may_delete", yes)
        case "no life takes over":
            patch.replace(recording, "newest_taken_over", not_again)
        case _:
            patch.replace(sys.modules[__name__], "list_outcomes", all_lives)
    with pytest.raises(AssertionError):
        await a_wrong_restore(world)


@pytest.mark.parametrize("bug", ["nothing is checked", "what is in the log goes"])
async def test_a_planted_bug_is_caught(bug: str, patch: Patch) -> None:
    async def forgetful(self: OutcomeRecorder, outcomes: Sequence[TransactionOutcome]) -> list[TransactionOutcome]:
        return list(outcomes)[1:]

    if bug == "nothing is checked":
        patch.replace(recording, "CHECKS_PER_ENTRY", 0)
        patch.replace(recording, "CHECKS_PER_RUN", 0)
    else:
        patch.replace(OutcomeRecorder, "_used", forgetful)
    with pytest.raises(AssertionError):
        await test_objects_hold_what_is_in_the_log(40)
