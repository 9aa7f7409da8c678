"""The text form of targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.bench.target_spec import TargetSpec, headrace_command, parse_target
from headrace.config.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("dev", TargetSpec("dev", "dev")),
        ("short=dev linger.ms=5", TargetSpec("short", "dev", "", {"linger.ms": "5"})),
        ("kafka", TargetSpec("kafka", "kafka")),
        ("kafka:/opt/kafka", TargetSpec("kafka", "kafka", "/opt/kafka")),
        ("k41=kafka:jars num.io.threads=4", TargetSpec("k41", "kafka", "jars", {"num.io.threads": "4"})),
        ("before=headrace:/src/before", TargetSpec("before", "headrace", "/src/before")),
        ("b='headrace:env A=1 headrace'", TargetSpec("b", "headrace", "env A=1 headrace")),
        ("10.0.0.1:9092,b:9093", TargetSpec("running", "running", "10.0.0.1:9092,b:9093")),
        ("kafka:9092", TargetSpec("running", "running", "kafka:9092")),
        ("prod=a:9092 pid=7", TargetSpec("prod", "running", "a:9092", {"pid": "7"})),
    ],
)
def test_forms_of_a_target(text: str, spec: TargetSpec) -> None:
    assert parse_target(text) == spec


@pytest.mark.parametrize(
    "text", ["", "spark", "dev linger", "dev =5", "headrace:", "a:b", "dev put-delay-ms=x", "dev 'a"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(text)


def test_puts_are_delayed_only_where_the_bench_can_do_it() -> None:
    assert parse_target("dev put-delay-ms=30").put_delay_ms() == 30
    assert parse_target("dev").put_delay_ms() == 0
    assert parse_target("kafka:jars put-delay-ms=30").put_delay_ms() == 0


def test_a_folder_is_a_checkout_with_its_environment(tmp_path: Path) -> None:
    assert headrace_command(str(tmp_path)) == [str(tmp_path / ".venv" / "bin" / "headrace")]
    assert headrace_command("env A=1 headrace") == ["env", "A=1", "headrace"]
