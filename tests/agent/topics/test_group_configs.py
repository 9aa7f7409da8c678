"""A group's own configs through Kafka's requests: shown, and changed only within the agents' bounds."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.settings import Settings
from tests.agent.topics.configs_world import DELETE, GROUP, SET, Change, ConfigsWorld
from tests.manual_clock import ManualClock


async def test_a_groups_configs(admin: ConfigsWorld) -> None:
    assert (await admin.values(GROUP, "g")).keys() == GROUP_CONFIGS.keys()
    (done,) = await admin.change((GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")]))
    assert done.error_code == 0
    assert (await admin.values(GROUP, "g"))["consumer.session.timeout.ms"] == ("50000", 8)
    (refused,) = await admin.change((GROUP, "g", [("retention.ms", SET, "50000")]))
    assert refused.error_code == ErrorCode.invalid_config


SESSION, BEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(SESSION, SET, "5")], "group.consumer.min.session.timeout.ms=45000"),
        ([(SESSION, SET, "44999")], "group.consumer.min.session.timeout.ms=45000"),
        ([(SESSION, SET, "60001")], "group.consumer.max.session.timeout.ms=60000"),
        ([(BEAT, SET, "4999")], "group.consumer.min.heartbeat.interval.ms=5000"),
        ([(BEAT, SET, "15001")], "group.consumer.max.heartbeat.interval.ms=15000"),
        ([(SESSION, SET, "50000"), (BEAT, SET, "1")], "group.consumer.min.heartbeat.interval.ms=5000"),
    ],
)
async def test_a_groups_times_stay_within_the_agents_bounds(
    admin: ConfigsWorld, changes: list[Change], reason: str
) -> None:
    (refused,) = await admin.change((GROUP, "g", changes))
    assert refused.error_code == ErrorCode.invalid_config
    assert reason in refused.error_message
    replaced = await admin.replace(GROUP, "g", *((name, value) for name, _, value in changes))
    assert replaced.error_code == ErrorCode.invalid_config
    assert {source for _, source in (await admin.values(GROUP, "g")).values()} == {5}, "nothing was recorded"


async def test_a_groups_times_may_be_the_bounds_themselves(admin: ConfigsWorld) -> None:
    for session, beat in (("45000", "5000"), ("60000", "15000")):
        (done,) = await admin.change((GROUP, "g", [(SESSION, SET, session), (BEAT, SET, beat)]))
        assert done.error_code == 0
        values = await admin.values(GROUP, "g")
        assert (values[SESSION][0], values[BEAT][0]) == (session, beat)


async def test_a_groups_beats_are_shorter_than_its_sessions(fake_clock: ManualClock) -> None:
    """Whichever of the two is changed, and also by taking one away."""
    bounds = Settings(group_consumer_min_session_timeout_ms=1_000, group_consumer_session_timeout_ms=10_000)
    admin = ConfigsWorld(fake_clock, bounds)
    await admin.join()
    (refused,) = await admin.change((GROUP, "g", [(SESSION, SET, "5000")]))
    assert "must be less than consumer.session.timeout.ms: 5000 is not less than 5000" in refused.error_message
    (done,) = await admin.change((GROUP, "g", [(SESSION, SET, "40000"), (BEAT, SET, "12000")]))
    assert done.error_code == 0
    (refused,) = await admin.change((GROUP, "g", [(SESSION, DELETE, None)]))
    assert refused.error_code == ErrorCode.invalid_config
    (done,) = await admin.change((GROUP, "g", [(SESSION, DELETE, None), (BEAT, DELETE, None)]))
    assert done.error_code == 0
