"""A group's own times: an accepted value takes effect as shown, and the agent's bounds apply to any stored value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.topics.configs.rules import ConfigResource, Operation, ResourceType, Wish, judge
from headrace.config.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.storage.errors import InvalidError

times = st.one_of(st.none(), st.integers(1, 100_000), st.sampled_from([4_999, 5_000, 15_000, 15_001, 45_000, 60_000]))


def with_times(**own: str) -> MetadataImage:
    """Return rules with times of group `g`."""
    names = {"session": SESSION_TIMEOUT, "beat": HEARTBEAT_INTERVAL}
    records = [
        ConfigRecord(resource_type=ResourceType.GROUP, resource_name="g", name=names[key], value=value)
        for key, value in own.items()
    ]
    return apply(MetadataImage(), [encode_record(record) for record in records])


@given(session=times, beat=times, least=st.sampled_from([5_000, 10_000, 45_000]))
def test_what_was_accepted_acts_as_it_is_shown(session: int | None, beat: int | None, least: int) -> None:
    settings = Settings(group_consumer_min_session_timeout_ms=least)
    configs, image = EffectiveConfigs(settings), MetadataImage()
    wanted = {SESSION_TIMEOUT: session, HEARTBEAT_INTERVAL: beat}
    wishes = [Wish(name, Operation.SET, str(value)) for name, value in wanted.items() if value is not None]
    changes = judge(configs, image, ConfigResource(ResourceType.GROUP, "g"), wishes)
    if not isinstance(changes, list):
        return
    after = apply(image, [encode_record(change) for change in changes])
    shown = [int(configs.group_layers(after, "g", name)[0].value) / 1000 for name in wanted]
    assert ConsumerGroupRules(settings).times(after, "g") == GroupTimes(*shown)
    assert shown[1] < shown[0]


def test_another_agents_bounds_are_narrowed_to_ones_own() -> None:
    rules = ConsumerGroupRules(Settings())
    assert rules.times(with_times(session="5", beat="100000"), "g") == GroupTimes(45.0, 15.0)
    assert rules.times(with_times(session="100000", beat="5"), "g") == GroupTimes(60.0, 5.0)


def test_an_agents_own_times_must_fit_each_other() -> None:
    with pytest.raises(InvalidError, match="is not between group"):
        ConsumerGroupRules(Settings(group_consumer_session_timeout_ms=5))
    short = Settings(group_consumer_session_timeout_ms=5_000, group_consumer_min_session_timeout_ms=5_000)
    with pytest.raises(InvalidError, match="is not less than group"):
        ConsumerGroupRules(short)
