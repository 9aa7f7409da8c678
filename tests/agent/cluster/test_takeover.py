"""A killed controller is replaced within its lease, whenever it is killed and whenever its standbys ask."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.cluster.candidate import TIMES, Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.seeds import examples

LEASE_SECONDS = TIMES.lease_ms / 1000


@pytest.mark.requirement("C15")
@settings(max_examples=examples(60), deadline=None)
@given(
    st.floats(0, LEASE_SECONDS).map(lambda s: 10 + s),
    st.lists(st.floats(0, LEASE_SECONDS), min_size=1, max_size=3),
    st.sampled_from((0.0, 0.05)),
)
async def test_a_standby_is_active_within_a_lease_of_the_kill(
    killed_after: float, started_after: list[float], latency: float
) -> None:
    """`started_after`: when each standby came, so when it asks; `latency`: what a call takes."""
    clock = ManualClock()
    api = FakeClusterApi(clock)
    api.latency = latency
    active = Candidate(api, 1)
    standbys = []
    for number, seconds in enumerate(started_after):
        await clock.advance(max(seconds, 4 * latency))
        standbys.append(Candidate(api, 2 + number))
    await clock.advance(killed_after)
    assert [each.controller.is_active for each in (active, *standbys)] == [True, *(False for _ in standbys)]
    await active.die()
    await clock.advance(LEASE_SECONDS + 2 * latency)
    assert [each.controller.is_active for each in standbys].count(True) == 1
    assert not active.controller.is_active
    assert api.controller.controller_epoch == 2
    for each in standbys:
        await clock.run(each.controller.stop())
