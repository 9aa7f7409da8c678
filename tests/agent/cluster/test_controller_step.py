"""How the active controller takes its steps: pauses, what is left over, failures, and steps that take long."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace.agent.cluster.controller.rounds import ControllerStep, ControllerSteps, TopicsWhere, always
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import FencedError, UnavailableError
from headrace.storage.supervision import Supervisor
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("C15")
PAUSE = 10.0


class World:
    """One step; `answers` has what its turns return or raise, True if it is empty."""

    def __init__(self, clock: ManualClock, *, is_long: bool = False) -> None:
        self.turns: list[float] = []
        self.answers: list[bool | Exception] = []
        self.found: object = [1]
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.hides = 0
        self.supervisor = Supervisor(clock)
        self.clock = clock
        step = ControllerStep[Any](
            "a step", lambda image: self.found, self._act, lambda: PAUSE, self._hide, is_long=is_long
        )
        follower = MetadataFollower(cast(Any, None))
        self.steps = ControllerSteps([step], follower, clock, self.supervisor)

    async def _act(self, epoch: int, image: MetadataImage, found: object) -> bool:
        assert (epoch, found) == (7, self.found)
        self.turns.append(self.clock.monotonic())
        await self.may_end.wait()
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _hide(self) -> None:
        self.hides += 1

    async def rounds(self, count: int) -> int:
        """Return how many turns are taken in so many rounds, one a second."""
        before = len(self.turns)
        for _ in range(count):
            await self.steps.run(7)
            await self.clock.advance(1.0)
        return len(self.turns) - before


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)


async def test_a_step_pauses_between_two_turns(world: World) -> None:
    assert await world.rounds(31) == 4


async def test_what_is_left_over_is_done_in_the_next_rounds(world: World) -> None:
    world.answers = [True, True]
    assert await world.rounds(10) == 3


async def test_a_step_that_finds_nothing_is_not_taken_and_judges_again_in_the_next_round(
    world: World,
) -> None:
    world.found = []
    assert await world.rounds(5) == 0
    world.found = [2]
    assert await world.rounds(1) == 1


async def test_a_failure_is_tried_again_after_the_supervisors_pauses(world: World) -> None:
    world.answers = [KeyError("a bug")] * 4
    await world.rounds(9)
    assert [turn - world.turns[0] for turn in world.turns] == [0, 1, 2, 4, 8]
    assert world.supervisor.problems() == {}


async def test_a_judgement_that_fails_counts_as_a_failure(world: World) -> None:
    world.steps.steps["a step"].judge = lambda image: 1 // 0
    assert await world.rounds(1) == 0
    assert list(world.supervisor.problems()) == ["a step"]


async def test_a_stale_epoch_ends_the_round(world: World) -> None:
    world.answers = [FencedError("stale")]
    with pytest.raises(FencedError):
        await world.rounds(1)


async def test_a_standby_has_no_problem_and_no_pause(world: World) -> None:
    world.answers = [UnavailableError("down")] * 3
    await world.rounds(2)
    world.steps.stand_by()
    assert world.supervisor.problems() == {}
    assert world.hides == 1
    world.answers = []
    assert await world.rounds(2) == 1, "what the pause began with is forgotten"
    world.steps.stand_by()
    assert await world.rounds(1) == 1


async def test_a_long_step_holds_up_no_round_and_does_not_overtake_itself(fake_clock: ManualClock) -> None:
    world = World(fake_clock, is_long=True)
    world.may_end.clear()
    assert await world.rounds(25) == 1
    world.may_end.set()
    await fake_clock.advance(0.1)
    assert await world.rounds(1) == 1


@pytest.mark.parametrize("error", [KeyError("a bug"), FencedError("stale")])
async def test_a_long_step_that_fails_pauses_as_well(fake_clock: ManualClock, error: Exception) -> None:
    world = World(fake_clock, is_long=True)
    world.answers = [error] * 9
    assert await world.rounds(20) == 2


async def test_a_long_step_ends_with_the_controller(fake_clock: ManualClock) -> None:
    world = World(fake_clock, is_long=True)
    world.may_end.clear()
    await world.rounds(1)
    await world.steps.close()
    turn = world.steps.steps["a step"].turn
    assert turn is not None
    assert turn.cancelled()
    assert world.hides == 1


async def test_topics_are_looked_at_again_only_when_they_changed(fake_clock: ManualClock) -> None:
    api, looks = FakeClusterApi(fake_clock), list[str]()
    first, second = api.add_topic("a", 1), api.add_topic("b", 1)
    follower = MetadataFollower(api)

    def concerned(topic: Any) -> bool:
        looks.append(topic.name)
        return topic.topic_id != second

    judge = TopicsWhere(concerned)
    assert judge(await follower.catch_up()) == [first]
    api.add_agent(1)
    assert judge(await follower.catch_up()) == [first]
    assert sorted(looks) == ["a", "b"]
    third = api.add_topic("c", 1)
    assert judge(await follower.catch_up()) == [first, third]
    assert always(follower.image)
