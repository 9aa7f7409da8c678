"""X4, X13: an agent puts what it alone knows of a life that is over into the bucket, however often the bucket fails."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Sequence

import pytest

from headrace.agent.fetch import loss_notes
from headrace.agent.fetch.loss_notes import ForgottenExtents
from headrace.metastore.api.read import Extent
from headrace.metastore.life.forgotten import OffsetRange, read_forgotten
from headrace.storage import insistent
from headrace.storage.errors import OutcomeUnknownError
from headrace.storage.file_id import is_inline, new_inline_file_id, object_key
from headrace.storage.insistent import SAVE_S
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.manual_clock import ManualClock
from tests.patch import Patch

pytestmark = [pytest.mark.requirement("X4"), pytest.mark.requirement("X13")]


class FailingStore(MemoryStore):
    """A bucket that is away while a test says so; `puts` counts tries at small files."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.puts = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.puts += key.startswith("segments/")
        if self.is_away:
            raise OutcomeUnknownError("planned")
        return await super().put(key, body, if_absent=if_absent)


def inline_ids(count: int) -> list[uuid.UUID]:
    rng = random.Random(7)
    found = [new_inline_file_id(1_700_000_000_000, 0, rng) for _ in range(count)]
    assert all(map(is_inline, found))
    return found


class Scene:
    """An agent with two small files in memory, and one that it has no more."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.store = clock, FailingStore()
        first, second, gone = inline_ids(3)
        self.bodies = {first: memoryview(b"first"), second: memoryview(b"second")}
        self.forgotten = ForgottenExtents(self.store, clock, random.Random(1), self.bodies.get)
        self.extents = [
            Extent(1, 10 * number, 10 * number + 9, file_id, 0, 5, 0, 0)
            for number, file_id in enumerate((first, second, gone))
        ]

    async def saved(self) -> dict[str, bytes]:
        return {info.key: await self.store.get(info.key) async for info in self.store.list_objects("segments/")}

    @property
    def wanted(self) -> dict[str, bytes]:
        return {object_key(file_id): bytes(body) for file_id, body in self.bodies.items()}


@pytest.fixture
def scene(fake_clock: ManualClock) -> Scene:
    return Scene(fake_clock)


async def check_all_is_saved_once_the_bucket_is_back(scene: Scene) -> None:
    scene.forgotten.note(scene.extents)
    await scene.clock.advance(100.0)
    tries = scene.store.puts
    assert 2 * 20 <= tries <= 2 * 30, "with pauses that grow"
    scene.store.is_away = False
    await scene.clock.advance(60.0)
    assert await scene.saved() == scene.wanted
    assert scene.store.puts == tries + 2
    assert await read_forgotten(scene.store) == {
        extent.source: {OffsetRange(extent.partition_key, extent.base_offset, extent.last_offset)}
        for extent in scene.extents
    }
    assert len([info async for info in scene.store.list_objects("metastore/extents/")]) == 1
    await scene.forgotten.close()


async def test_files_and_their_list_are_put_until_the_bucket_has_them(scene: Scene) -> None:
    await check_all_is_saved_once_the_bucket_is_back(scene)


async def test_it_ends_some_time_and_with_the_agent(scene: Scene) -> None:
    scene.forgotten.note(scene.extents)
    await scene.clock.advance(SAVE_S + 60.0)
    tries = scene.store.puts
    await scene.clock.advance(SAVE_S)
    assert scene.store.puts == tries
    scene.forgotten.note(scene.extents)
    await scene.clock.settle()
    scene.store.is_away = False
    await scene.forgotten.close()
    assert await scene.saved() == scene.wanted, "one more try at the end"


async def test_what_is_forgotten_is_listed_before_the_files_are_saved(scene: Scene, patch: Patch) -> None:
    listed: list[int] = []

    async def write(store: object, name: uuid.UUID, extents: Sequence[Extent]) -> None:
        listed.append(len(extents))

    patch.replace(loss_notes, "write_forgotten", write)
    scene.forgotten.note(scene.extents)
    await scene.clock.advance(0.5)
    assert listed == [3]
    assert await scene.saved() == {}
    await scene.forgotten.close()


async def test_what_is_put_once_only_is_found(scene: Scene, patch: Patch) -> None:
    """The planted bug: the first failure is the last."""
    patch.replace(insistent, "SAVE_S", -1.0)
    with pytest.raises(AssertionError):
        await check_all_is_saved_once_the_bucket_is_back(scene)


async def test_a_list_that_is_put_once_only_is_found(scene: Scene, patch: Patch) -> None:
    """The planted bug of the list alone."""

    async def write_once(forgotten: ForgottenExtents, extents: Sequence[Extent]) -> None:
        with contextlib.suppress(OutcomeUnknownError):
            await loss_notes.write_forgotten(scene.store, uuid.UUID(int=1), extents)

    patch.replace(ForgottenExtents, "_write", write_once)
    with pytest.raises(AssertionError):
        await check_all_is_saved_once_the_bucket_is_back(scene)
