"""Check which topic configs work, which are accepted for the sake of Kafka's tools, and which take their default
only.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.config import topic_configs
from headrace.config.config_definition import ConfigEffect
from headrace.config.topic_configs import TOPIC_CONFIGS
from tests.agent.topics.configs_world import SET, TOPIC, ConfigsWorld

FIXED = sorted(name for name, definition in TOPIC_CONFIGS.items() if definition.why_fixed)
OTHER_VALUES = {"compression.lz4.level": "10", "compression.gzip.level": "9", "compression.zstd.level": "-7"}


def test_no_config_is_silently_ignored() -> None:
    """Each of Kafka's topic configs is of one kind, and says which."""
    kinds = {effect: {n for n, d in TOPIC_CONFIGS.items() if d.effect is effect} for effect in ConfigEffect}
    assert kinds[ConfigEffect.MET] == {
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.insync.replicas",
    }
    assert kinds[ConfigEffect.REPLACED] == {"segment.index.bytes", "segment.jitter.ms"}
    assert all(
        definition.meaning or definition.refused or definition.why_fixed for definition in TOPIC_CONFIGS.values()
    )


@pytest.mark.parametrize("name", FIXED)
async def test_a_config_that_cannot_work_takes_its_default_only(admin: ConfigsWorld, name: str) -> None:
    """Tools that always send the defaults are answered, whether they create a topic or change one."""
    definition = TOPIC_CONFIGS[name]
    (done,) = await admin.change((TOPIC, "orders", [(name, SET, f" {definition.default} ")]))
    assert done.error_code == 0
    (refused,) = await admin.change((TOPIC, "orders", [(name, SET, OTHER_VALUES.get(name, "5"))]))
    assert refused.error_code == ErrorCode.invalid_config
    assert definition.why_fixed in refused.error_message
    assert topic_configs.why_invalid(name, definition.default) is None
    assert definition.why_fixed in (topic_configs.why_invalid(name, OTHER_VALUES.get(name, "5")) or "")


@pytest.mark.parametrize(
    "sent",
    [
        {"cleanup.policy": "delete", "segment.bytes": "52428800", "retention.ms": "-1"},
        {"segment.bytes": "104857600", "segment.ms": "3600000", "segment.index.bytes": "1000", "flush.ms": "1000"},
        {name: definition.default for name, definition in TOPIC_CONFIGS.items()},
    ],
    ids=["a repartition topic of Kafka Streams", "a mirrored topic", "every default"],
)
async def test_what_kafkas_own_tools_send_is_accepted(admin: ConfigsWorld, sent: dict[str, str]) -> None:
    (done,) = await admin.change((TOPIC, "orders", [(name, SET, value) for name, value in sent.items()]))
    assert (done.error_code, done.error_message) == (0, None)
    assert {name: topic_configs.why_invalid(name, value) for name, value in sent.items()} == dict.fromkeys(sent)
    assert admin.own() == {"retention.ms": "1000"} | sent
