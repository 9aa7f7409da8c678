"""A controller with a bug: its other steps continue, and if whole rounds fail another process gets the role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.agent.cluster.controller import controller as controller_module
from headrace.agent.cluster.controller.controller import ABSTAIN_SECONDS, FAILED_ROUNDS_MAX, Controller
from headrace.agent.cluster.controller.rounds import always
from headrace.storage.errors import UnavailableError
from tests.agent.cluster.candidate import TIMES, Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.patch import Patch

SECONDS = 120
STEPS = (
    "due records",
    "settings of the cluster",
    "partition removal",
    "split boundaries",
    "topic halvings",
    "metadata snapshots",
    "job schedules",
)


def breaks(controller: Controller, name: str, error: Exception) -> None:
    """Let this step, or this method, always fail."""

    async def broken(*arguments: object) -> None:
        raise error

    if name in STEPS:
        step = controller._steps.steps[name]
        step.judge, step.act = always, broken
    else:
        setattr(controller, name, broken)


def counts(api: FakeClusterApi, name: str) -> list[int]:
    """Node ids of the controllers that make this call; filled as they do."""
    calls: list[int] = []
    real: Callable[..., Awaitable[Any]] = getattr(api, name)

    async def counted(epoch: int, *arguments: Any, **more: Any) -> Any:
        calls.append(epoch)
        return await real(epoch, *arguments, **more)

    setattr(api, name, counted)
    return calls


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("error", [KeyError("a bug"), UnavailableError("its statement takes too long")])
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_always_fails_holds_up_no_other(
    api: FakeClusterApi, fake_clock: ManualClock, step: str, error: Exception
) -> None:
    candidates = [Candidate(api, node_id) for node_id in (1, 2, 3)]
    await fake_clock.advance(5)
    for candidate in candidates:  # the bug is in all of them
        breaks(candidate.controller, step, error)
    fencing, scheduling = counts(api, "fence_silent_agents"), counts(api, "schedule_jobs")
    epoch = api.controller.controller_epoch
    await fake_clock.advance(SECONDS)
    assert [candidate.controller.is_active for candidate in candidates].count(True) == 1
    assert api.controller.controller_epoch == epoch, "the role stays where it is"
    assert len(fencing) > SECONDS / (TIMES.session_timeout_ms / 1000)
    assert scheduling or step == "job schedules"
    active = next(candidate.controller for candidate in candidates if candidate.controller.is_active)
    assert list(active._supervisor.problems()) == [step]
    assert list(active._steps.steps) == list(STEPS), "all of the table"
    for candidate in candidates:
        await candidate.controller.stop()


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("step", ["_fence_silent", "_follow", "_work"])
async def test_a_controller_with_failing_rounds_gives_the_role_away(
    api: FakeClusterApi, fake_clock: ManualClock, step: str
) -> None:
    first, second = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(5)
    active, standby = (first, second) if first.controller.is_active else (second, first)
    breaks(active.controller, step, KeyError("a bug"))
    fencing = counts(api, "fence_silent_agents")
    await fake_clock.advance((FAILED_ROUNDS_MAX + 2) * TIMES.lease_ms / 1000)
    assert standby.controller.is_active
    assert not active.controller.is_active
    fencing.clear()
    await fake_clock.advance(2 * ABSTAIN_SECONDS)
    assert standby.controller.is_active
    assert len(fencing) > 2 * ABSTAIN_SECONDS / (TIMES.session_timeout_ms / 1000)
    for candidate in (active, standby):
        await candidate.controller.stop()


async def test_it_takes_the_role_again_after_a_while_if_no_other_does(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    only = Candidate(api, 1)
    await fake_clock.advance(5)
    real = only.controller._fence_silent
    breaks(only.controller, "_fence_silent", KeyError("a bug"))
    await fake_clock.advance((FAILED_ROUNDS_MAX + 1) * TIMES.lease_ms / 1000)
    assert not only.controller.is_active
    only.controller._fence_silent = real  # type: ignore[method-assign]
    await fake_clock.advance(ABSTAIN_SECONDS)
    assert only.controller.is_active
    await only.controller.stop()


async def test_an_outage_of_the_metastore_is_no_reason_to_resign(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    only = Candidate(api, 1)
    await fake_clock.advance(5)
    breaks(only.controller, "_fence_silent", UnavailableError("no answer"))
    await fake_clock.advance(60)
    assert only.controller.is_active
    await only.controller.stop()


async def test_the_planted_bug_keeps_the_lease_and_does_nothing(
    api: FakeClusterApi, fake_clock: ManualClock, patch: Patch
) -> None:
    """It never resigns, as before there was a supervisor."""
    patch.replace(controller_module, "FAILED_ROUNDS_MAX", 10**9)
    with pytest.raises(AssertionError):
        await test_a_controller_with_failing_rounds_gives_the_role_away(api, fake_clock, "_fence_silent")
