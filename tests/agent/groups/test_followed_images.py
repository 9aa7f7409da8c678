"""A new image comes to all groups of an agent, some at a time."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.groups.claims import Held, NewGroups
from headrace.agent.groups.coordinated import CoordinatedGroup
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.limits.work_slices import ELEMENT_UNITS, UNITS_MAX, WorkSlices
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.log.image import MetadataImage
from headrace.storage.supervision import Supervisor
from tests.agent.topics.test_long_metadata import Runs, agents, image, view_of
from tests.manual_clock import ManualClock
from tests.patch import Patch

GROUPS = 3_000


class Following:
    """A group that notes how often it hears of an image."""

    kind, state_name = GroupKind.CONSUMER, "Stable"

    def __init__(self, number: int, runs: Runs) -> None:
        self.group_id, self.runs, self.images = f"g{number}", runs, list[MetadataImage]()

    def metadata_changed(self, now: float, found: MetadataImage) -> list[Any]:
        self.runs.did(1)
        self.images.append(found)
        return []

    def is_idle(self) -> bool:
        return False

    def next_deadline(self) -> None:
        return None


def held_groups(runs: Runs) -> tuple[HeldGroups, list[Following]]:
    """Return an agent's groups, which have not heard of the newest image."""
    api: Any = None
    view = view_of(image([], agents(1)))
    registry = CollectorRegistry()
    memory = GroupMemory(1 << 40, 1 << 40, Counter("limits", "Not read.", registry=registry))
    held = HeldGroups(
        NewGroups(api, None), view, ManualClock(), {}, GroupMetrics(registry), memory, Supervisor(ManualClock())
    )
    groups = [Following(number, runs) for number in range(GROUPS)]
    for group in groups:
        coordinated: CoordinatedGroup = group  # type: ignore[assignment]
        held._held[group.group_id] = Held(coordinated, 1, 1, 0.0, group.state_name, is_empty=True)
    held._start_timer = lambda: None  # type: ignore[method-assign]
    view.image = MetadataImage(agents=MappingProxyType({}))
    return held, groups


async def follow(held: HeldGroups, runs: Runs) -> None:
    """Tell the groups, while other tasks run as often as they can."""

    async def others() -> None:
        while True:
            await runs.pause()

    turning = asyncio.create_task(others())
    await held._follow_metadata(0.0)
    turning.cancel()


async def test_groups_hear_of_an_image_in_slices(patch: Patch) -> None:
    runs = Runs()
    held, groups = held_groups(runs)
    await follow(held, runs)
    assert all(group.images == [held.cluster.image] for group in groups)
    assert runs.longest <= UNITS_MAX // ELEMENT_UNITS + 1

    async def nothing(self: WorkSlices, units: int) -> None:
        """Count nothing."""

    patch.replace(WorkSlices, "did", nothing)
    runs = Runs()
    held, groups = held_groups(runs)
    await follow(held, runs)
    assert runs.longest == GROUPS, "planted: groups cost nothing"


async def test_a_group_that_was_released_meanwhile_does_not_hear_of_the_image() -> None:
    runs = Runs()
    held, groups = held_groups(runs)
    following = asyncio.create_task(held._follow_metadata(0.0))
    await asyncio.sleep(0)
    assert runs.total < GROUPS
    last = groups[-1]
    del held._held[last.group_id]
    await following
    assert not last.images
    assert len(groups[-2].images) == 1
