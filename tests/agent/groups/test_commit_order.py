"""A commit of offsets that lost its answer may reach the server later: it must not undo what was committed since."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pytest

from headrace.agent.groups.held_groups import HeldGroups
from headrace.metastore.api.groups import CommittedOffset
from headrace.storage.errors import FencedError, OutcomeUnknownError
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.agent.groups.groups_world import GroupsWorld
from tests.agent.groups.test_admin import delete_offsets
from tests.manual_clock import ManualClock
from tests.patch import Patch


class SlowNetwork:
    """Fault model: a call's connection breaks, and the server carries the call out later, or never."""

    def __init__(self, api: FakeGroupApi, rng: random.Random) -> None:
        self._api, self._rng = api, rng
        self._commit, self._delete = api.commit_offsets, api.delete_offsets
        self._late: list[tuple[str, int, Sequence[CommittedOffset] | Sequence[int]]] = []
        self.breaks = True

    async def commit_offsets(self, group_id: str, epoch: int, offsets: Sequence[CommittedOffset]) -> list[bool]:
        self._break(group_id, epoch, offsets)
        return await self._commit(group_id, epoch, offsets)

    async def delete_offsets(self, group_id: str, epoch: int, keys: Sequence[int]) -> None:
        self._break(group_id, epoch, keys)
        await self._delete(group_id, epoch, keys)

    def _break(self, *call: object) -> None:
        if self.breaks and self._rng.random() < 0.4:
            if self._rng.random() < 0.8:
                self._late.append(call)  # type: ignore[arg-type]
            raise OutcomeUnknownError("the connection was lost")

    async def deliver(self, most: int) -> None:
        """Some of the delayed calls reach the server, in any order."""
        for _ in range(min(most, len(self._late))):
            group_id, epoch, what = self._late.pop(self._rng.randrange(len(self._late)))
            with contextlib.suppress(FencedError):
                if what and isinstance(what[0], int):
                    await self._delete(group_id, epoch, what)  # type: ignore[arg-type]
                else:
                    await self._commit(group_id, epoch, what)  # type: ignore[arg-type]


async def _undone(world: GroupsWorld, seed: int) -> bool:
    """Return whether the group's offset is, in the end, what a request made it before the last one that was
    acknowledged.
    """
    rng = random.Random(seed)
    network = SlowNetwork(world.groups, rng)
    world.groups.commit_offsets = network.commit_offsets  # type: ignore[method-assign]
    world.groups.delete_offsets = network.delete_offsets  # type: ignore[method-assign]
    world.cluster_api.add_topic("t", 1)
    key = (await world.home.cluster.catch_up()).topics_by_name["t"].key(0)
    assert key is not None
    may_be: set[int | None] = {None}
    for offset in range(25):
        deletes = rng.random() < 0.3
        if deletes:
            code, codes = await delete_offsets(world.home, "g", {"t": [0]})
            done = code == 0 and codes["t"][0] == 0
        else:
            done = (await world.home.commit("g", {"t": {0: offset}}))["t"][0] == 0
        may_be = (set() if done else may_be) | {None if deletes else offset}
        await network.deliver(rng.choice((0, 0, 1, 3)))
    await network.deliver(1_000)
    stored = world.groups.offsets["g"].get(key)
    return (None if stored is None else stored.offset) not in may_be


@pytest.mark.parametrize("seed", range(12))
async def test_a_late_commit_does_not_undo_a_later_one(fake_clock: ManualClock, seed: int) -> None:
    world = GroupsWorld(fake_clock)
    await world.start()
    assert not await fake_clock.run(_undone(world, seed))
    await world.stop()


async def test_a_group_that_stays_under_its_epoch_is_found(fake_clock: ManualClock, patch: Patch) -> None:
    """A planted bug: the group is kept after a commit with an unknown outcome."""
    patch.replace(HeldGroups, "drop", lambda self, held: None)
    found = []
    for seed in range(12):
        world = GroupsWorld(fake_clock)
        await world.start()
        found.append(await fake_clock.run(_undone(world, seed)))
    assert any(found)
