"""X4: what members of share groups were answered comes into the bucket, also if the bucket fails at first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace.agent.groups.share.answered import AnsweredShares
from headrace.metastore.api.groups import ShareState
from headrace.metastore.life.recorded_shares import read_recorded
from headrace.storage import insistent
from headrace.storage.errors import OutcomeUnknownError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.manual_clock import ManualClock
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X4")


class FailingStore(MemoryStore):
    """A bucket that is away while a test says so."""

    is_away = False

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if self.is_away:
            raise OutcomeUnknownError("planned")
        return await super().put(key, body, if_absent=if_absent)


def state(group_id: str, key: int = 1, start: int = 0) -> ShareState:
    return ShareState(group_id, key, 0, 0, 0, start, b"")


class Scene:
    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.store = clock, FailingStore(clock)
        self.answered = AnsweredShares(self.store, lambda: 7, clock)

    def begin(self, states: Iterable[ShareState]) -> None:
        self.answered.note_released(states)
        self.answered.record([])

    async def recorded(self) -> set[tuple[str, int, int]]:
        found = await read_recorded(self.store, 1)
        assert len(found) <= 1
        return {(each.group_id, each.partition_key, each.start_offset) for one in found for each in one.states}


@pytest.fixture
def scene(fake_clock: ManualClock) -> Scene:
    return Scene(fake_clock)


async def check_it_is_there_once_the_bucket_is_back(scene: Scene) -> None:
    scene.store.is_away = True
    scene.begin([state("a"), state("b")])
    await scene.clock.advance(10.0)
    assert scene.answered.in_use_bytes > 0
    scene.begin([state("a", start=5), state("c"), state("gone")])
    scene.answered.forget("gone")
    await scene.clock.advance(10.0)
    scene.store.is_away = False
    await scene.clock.advance(10.0)
    assert await scene.recorded() == {("a", 1, 5), ("b", 1, 0), ("c", 1, 0)}
    await scene.answered.close()


async def test_states_are_put_until_the_bucket_has_them(scene: Scene) -> None:
    await check_it_is_there_once_the_bucket_is_back(scene)


async def test_a_bucket_that_is_back_at_the_end_has_them(scene: Scene) -> None:
    scene.store.is_away = True
    scene.begin([state("a")])
    await scene.clock.settle()
    scene.store.is_away = False
    await scene.answered.close()
    assert await scene.recorded() == {("a", 1, 0)}


async def test_states_that_are_put_once_only_are_found(scene: Scene, patch: Patch) -> None:
    """The planted bug: the first failure is the last."""
    patch.replace(insistent, "SAVE_S", -1.0)
    with pytest.raises(AssertionError):
        await check_it_is_there_once_the_bucket_is_back(scene)
