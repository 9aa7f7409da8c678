"""X10: the first values of the cluster: recorded when all running processes agree for a while, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.agent.cluster.controller.upkeep_steps import SETTLE_SECONDS, SettingAgreement
from headrace.config.cluster_values import cluster_settings, in_force, proposed
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import SettingProposals
from headrace.metastore.log.effective_configs import set_for_all_brokers
from tests.agent.cluster.candidate import Candidate
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X10")
NAME = "log.retention.ms"
LOOK_SECONDS = 5.0


def proposals(*files: dict[str, Any], values: dict[str, str] | None = None, unreported: int = 0) -> SettingProposals:
    """Return the proposals of one process per file."""
    undecided: dict[str, dict[str, tuple[str, ...]]] = {}
    for number, file in enumerate(files):
        for name, value in proposed(Settings(**file)).items():
            if name not in (values or {}):
                named = undecided.setdefault(name, {})
                named[value] = (*named.get(value, ()), f"p-{number}")
    return SettingProposals(undecided, {"broker": len(files)}, unreported)


def named(agreement: SettingAgreement, found: SettingProposals, now: float) -> dict[str, str | None]:
    return {record.name: record.value for record in agreement.due(found, {}, now)}


def test_one_process_alone_agrees_with_itself_after_a_while() -> None:
    agreement, found = SettingAgreement(), proposals({"log_retention_hours": 720})
    assert named(agreement, found, 100) == {}
    assert named(agreement, found, 100 + SETTLE_SECONDS - 1) == {}
    recorded = named(agreement, found, 100 + SETTLE_SECONDS)
    assert recorded.keys() == set(cluster_settings())
    assert recorded[NAME] == "2592000000"


def test_what_is_disputed_waits_and_the_rest_does_not() -> None:
    agreement, found = SettingAgreement(), proposals({"log_retention_hours": 720}, {})
    named(agreement, found, 0)
    recorded = named(agreement, found, SETTLE_SECONDS)
    assert recorded.keys() == set(cluster_settings()) - {NAME}
    agreed = proposals({"log_retention_hours": 720}, {"log_retention_minutes": 43_200})
    assert NAME not in named(agreement, agreed, SETTLE_SECONDS + 1), "agreed only since now"
    assert named(agreement, agreed, 2 * SETTLE_SECONDS + 1)[NAME] == "2592000000"


def test_a_process_that_joins_in_time_is_heard() -> None:
    agreement = SettingAgreement()
    named(agreement, proposals({}), 0)
    late = proposals({}, {"log_retention_hours": 720})
    for now in range(int(SETTLE_SECONDS) - 1, 10 * int(SETTLE_SECONDS), int(LOOK_SECONDS)):
        assert NAME not in named(agreement, late, now)


def test_nothing_is_recorded_while_an_agent_has_not_reported() -> None:
    """An agent of an older version does not report its file, which may have 720 hours."""
    agreement = SettingAgreement()
    for now in range(0, 10 * int(SETTLE_SECONDS), int(LOOK_SECONDS)):
        assert named(agreement, proposals({}, unreported=1), now) == {}
    named(agreement, proposals({}), 1_000)
    assert named(agreement, proposals({}), 1_000 + SETTLE_SECONDS)


def test_a_changed_proposal_starts_to_count_again() -> None:
    agreement = SettingAgreement()
    named(agreement, proposals({}), 0)
    changed = proposals({"log_retention_hours": 720})
    assert NAME not in named(agreement, changed, SETTLE_SECONDS)
    assert NAME in named(agreement, changed, 2 * SETTLE_SECONDS)


def test_values_that_do_not_fit_each_other_are_not_recorded() -> None:
    agreement, found = SettingAgreement(), proposals({"group_min_session_timeout_ms": 2_000_000})
    named(agreement, found, 0)
    assert named(agreement, found, SETTLE_SECONDS) == {}


async def test_the_active_controller_records_the_agreed_values_once(fake_clock: ManualClock) -> None:
    api = FakeClusterApi(fake_clock)
    api.proposals = proposals({"log_retention_hours": 720})
    one, two = Candidate(api, 1), Candidate(api, 2)
    await fake_clock.advance(SETTLE_SECONDS / 2)
    assert api.cluster_values == {}
    await fake_clock.advance(SETTLE_SECONDS)
    assert api.cluster_values == proposed(Settings(log_retention_hours=720))
    for candidate in (one, two):
        values = set_for_all_brokers(await candidate.follower.catch_up())
        assert in_force(Settings(log_retention_hours=1), values).log_retention_ms == 2_592_000_000
    log, looks = len(api.log), api.calls["setting_proposals"]
    await fake_clock.advance(10 * SETTLE_SECONDS)
    assert (len(api.log), api.calls["setting_proposals"]) == (log, looks), "nothing is left to decide"
    for candidate in (one, two):
        await candidate.controller.stop()


async def test_a_new_controller_observes_for_as_long_again(fake_clock: ManualClock) -> None:
    api = FakeClusterApi(fake_clock)
    api.proposals = proposals({})
    one = Candidate(api, 1)
    await fake_clock.advance(SETTLE_SECONDS - 5)
    await one.controller.stop()
    two = Candidate(api, 2)
    await fake_clock.advance(SETTLE_SECONDS - 5)
    assert api.cluster_values == {}
    await fake_clock.advance(15)
    assert api.cluster_values == proposed(Settings())
    await two.controller.stop()
