"""The controller halves a topic step by step on a real metastore; it fails at each call, and another one continues."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.agent.cluster.controller.completing_steps import HalvingSteps, PartitionSteps, due_steps
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.topics import HalvingPair, HalvingState
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, UnavailableError
from tests.metastore.commit_scenes import appended, batch
from tests.metastore.halving_scenes import TIMES, HalvingScene, open_halving_scene
from tests.metastore.sessions import session
from tests.nouns import NOUNS, flat, nouns

pytestmark = pytest.mark.requirement("X5")
WRITES = ("pause_children", "resume_children", "merge_children", "show_halved_count", "settle_halving")


class FailingStore:
    """The store's steps. The `fails_at`-th one fails: before it happens, or behind it with an unknown outcome."""

    def __init__(self, store: PostgresMetastore, fails_at: int = -1, *, behind: bool = False) -> None:
        self._store, self._behind = flat(store), behind
        self.left = fails_at
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        call = getattr(self._store, name)
        return self._failing(name, call) if name in WRITES else call

    def _failing(self, name: str, call: Any) -> Any:
        async def answer(*args: Any) -> Any:
            self.calls.append(name)
            self.left -= 1
            if self.left == -1 and not self._behind:
                raise UnavailableError("planned")
            result = await call(*args)
            if self.left == -1:
                raise OutcomeUnknownError("planned")
            return result

        return answer


class Steps:
    """The looks of one active controller after the other; the metastore's clock is the scene's."""

    def __init__(self, scene: HalvingScene, store: FailingStore) -> None:
        self.scene, self._store = scene, store
        self._take_over(scene.controller_epoch)

    def _take_over(self, epoch: int) -> None:
        self.epoch, self.follower = epoch, MetadataFollower(self.scene.store.cluster)
        self.steps = PartitionSteps(nouns(self._store), self.follower)

    async def round(self, ms: int = 1_000) -> None:
        """After so much time. A controller that fails is never learned of again."""
        await self.scene.later(ms)
        try:
            await self.halve(self.epoch)
        except HeadraceError:
            store, me = self.scene.store, uuid.uuid4()
            await store.controller.resign_controller(self.epoch)
            self._take_over((await store.controller.hold_controller_lease(77, me, 10_000_000)).controller_epoch)

    async def halve(self, epoch: int) -> None:
        image = await self.follower.catch_up()
        halving = [topic.topic_id for topic in image.topics_by_id.values() if topic.halving >= 0]
        await self.steps.halve(epoch, image, halving)


@pytest.fixture
async def scene(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[HalvingScene]:
    """A topic that doubled from two partitions to four, with records and a group in both children."""
    async with session(metastore_url) as raw:
        scene = await open_halving_scene(metastore, raw)
        await scene.double()
        await scene.outcomes(batch(scene.keys[2], 0), batch(scene.keys[3], 0, 30))
        await scene.commit_offset("g", 2, 4)
        await scene.commit_offset("g", 3, 0)
        yield scene


async def _halve(scene: HalvingScene, steps: Steps) -> None:
    """The group reads on in between; the end is that of an undisturbed halving."""
    await scene.begin()
    await steps.round()
    await steps.round()
    await scene.commit_offset("g", 2, 5)
    await scene.commit_offset("g", 3, 25)
    for _ in range(4):
        await steps.round()
    await steps.round(TIMES.pause_most_ms)
    await scene.commit_offset("g", 3, 30)
    for _ in range(3):
        await steps.round(TIMES.pause_again_ms)
    for _ in range(12):
        await steps.round()
    assert (await scene.image()).undeleted_partition_count == 2
    for _ in range(4):
        await steps.round(TIMES.settle_after_ms)
    topic = await scene.image()
    assert (topic.halving, topic.aliases, topic.undeleted_partition_count) == (-1, {2: 0, 3: 1}, 2)
    assert await scene.states() == [0, 0, 5, 5]
    assert await scene.outcomes(scene.aliased(2, 0, 5), scene.aliased(3, 1, 30)) == appended(0, 0)


async def test_a_controller_takes_each_step(scene: HalvingScene) -> None:
    store = FailingStore(scene.store)
    await _halve(scene, Steps(scene, store))
    assert store.calls == [
        "pause_children",  # of 2; the lag in 3 is too large
        "pause_children",  # of 3
        "merge_children",  # of 2
        "resume_children",  # the group has not committed five records of 3
        "pause_children",
        "merge_children",
        "show_halved_count",
        "settle_halving",
    ]


@pytest.mark.parametrize("behind", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("fails_at", range(8))
async def test_another_controller_goes_on_where_one_failed(scene: HalvingScene, fails_at: int, behind: bool) -> None:
    store = FailingStore(scene.store, fails_at, behind=behind)
    steps = Steps(scene, store)
    await _halve(scene, steps)
    assert store.left < 0, "it failed"
    assert steps.epoch > scene.controller_epoch


async def test_a_controller_that_was_replaced_takes_no_step(scene: HalvingScene) -> None:
    await scene.begin()
    steps = Steps(scene, FailingStore(scene.store))
    with pytest.raises(FencedError):
        await steps.halve(steps.epoch - 1)
    assert {pair.phase for pair in (await scene.state()).pairs} == {MergePhase.DRAINING}


async def test_without_a_controller_a_pause_ends(scene: HalvingScene) -> None:
    await scene.begin()
    await Steps(scene, FailingStore(scene.store)).round()
    assert await scene.outcomes(batch(scene.keys[2], 5)) == [(BatchOutcome.SENT_BACK, -1)]
    await scene.later(TIMES.pause_most_ms)
    assert await scene.outcomes(batch(scene.keys[2], 5)) == appended(5)


def _state(*phases: MergePhase, since_ms: int, shown_ms: int | None = None) -> HalvingState:
    pairs = [HalvingPair(index, 9, phase, since_ms, 0, 0, ()) for index, phase in enumerate(phases)]
    return HalvingState(2, 1_000_000, shown_ms, TIMES, pairs)


def test_the_count_is_shown_when_all_are_merged_for_a_time_and_settled_later() -> None:
    merged, paused = MergePhase.MERGED, MergePhase.PAUSED
    early, late = 1_000_001 - TIMES.show_after_ms, 1_000_000 - TIMES.show_after_ms
    assert due_steps(_state(merged, merged, since_ms=early)) == HalvingSteps([], [], [])
    assert due_steps(_state(merged, merged, since_ms=late)) == HalvingSteps([], [], [], shows=True)
    assert not due_steps(_state(merged, paused, since_ms=0)).shows
    shown_ms = 1_000_000 - TIMES.settle_after_ms
    assert due_steps(_state(merged, since_ms=0, shown_ms=shown_ms)) == HalvingSteps(settles=True)
    assert due_steps(_state(merged, since_ms=0, shown_ms=shown_ms + 1)) == HalvingSteps()
