"""The configs that Kafka's classes have: each is known here, or refused with a reason.

Place: tests/config checks the same on a list of names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.declared import declared
from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.refused import why_not_in_files
from headrace.config.topic_configs import TOPIC_CONFIGS
from tests.java_program import run_java
from tests.tools import KAFKA_JARS

pytestmark = pytest.mark.needs("kafka")
PAGE = Path(__file__).parents[2] / "docs" / "start" / "COMPATIBILITY.md"


@pytest.fixture(scope="module")
def kafkas() -> dict[str, dict[str, str]]:
    """Return the default of each name, by kind."""
    done = run_java(Path(__file__).with_name("KafkaConfigs.java"), f"{KAFKA_JARS}/*")
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = {"broker": {}, "topic": {}, "group": {}}
    for line in done.stdout.splitlines():
        kind, name, default = line.split("\t")
        found[kind][name] = default
    return found


def test_each_broker_config_is_a_setting_or_has_a_reason(kafkas: dict[str, dict[str, str]]) -> None:
    assert len(kafkas["broker"]) > 300
    assert [name for name in kafkas["broker"] if name not in declared() and not why_not_in_files(name)] == []


@pytest.mark.requirement("X16")
@pytest.mark.parametrize(("kind", "count"), [("share", 17), ("streams", 13)])
def test_the_broker_configs_of_a_kind_of_group_have_kafkas_defaults(
    kind: str, count: int, kafkas: dict[str, dict[str, str]]
) -> None:
    own = {name: str(each.default) for name, each in declared().items() if name.startswith(f"group.{kind}.")}
    assert own == {name: kafkas["broker"][name] for name in own}
    assert len(own) == count


def test_each_topic_config_is_known_with_its_default(kafkas: dict[str, dict[str, str]]) -> None:
    own = {name: config.default for name, config in TOPIC_CONFIGS.items()}
    assert {name: default for name, default in kafkas["topic"].items() if own.get(name) != default} == {}


def test_each_config_of_a_group_is_known_or_on_the_page(kafkas: dict[str, dict[str, str]]) -> None:
    own = kafkas["group"]
    unknown = own.keys() - GROUP_CONFIGS.keys()
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name in unknown if f"`{name}`" not in page} == set()
    assert {name: own[name] for name in GROUP_CONFIGS} == {name: c.default for name, c in GROUP_CONFIGS.items()}
