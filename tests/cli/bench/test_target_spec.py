"""The text form of targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.bench.headrace_target import server_flags
from headrace.cli.bench.targets import S3Latency, TargetOptions, TargetSpec, headrace_command, parse_target
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


@pytest.mark.parametrize(
    ("text", "options", "passed_on"),
    [
        ("dev", TargetOptions(), {}),
        ("dev put-delay-ms=30 linger.ms=5", TargetOptions(put_delay_ms=30), {"linger.ms": "5"}),
        ("dev agents=3", TargetOptions(agents=3), {}),
        ("dev bucket=s3", TargetOptions(s3=S3Latency(0, 0, 0.5, 7)), {}),
        (
            "dev bucket=s3 put-ms=45 get-ms=15.5 sigma=0 seed=3 s3.max.connections=8",
            TargetOptions(s3=S3Latency(45, 15.5, 0, 3)),
            {"s3.max.connections": "8"},
        ),
        ("headrace:/src agents=2 bucket=s3", TargetOptions(agents=2, s3=S3Latency()), {}),
        ("headrace:/src put-delay-ms=30", TargetOptions(), {"put-delay-ms": "30"}),
        ("kafka nodes=3", TargetOptions(nodes=3), {}),
        ("kafka:jars agents=3", TargetOptions(), {"agents": "3"}),
        ("a:9092 http=a:1", TargetOptions(), {"http": "a:1"}),
    ],
)
def test_options_are_of_a_kind_and_other_keys_are_settings(
    text: str, options: TargetOptions, passed_on: dict[str, str]
) -> None:
    spec = parse_target(text)
    assert spec.options() == options
    assert spec.passed_on() == passed_on


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dev agents=0", "agents is not a whole number"),
        ("kafka nodes=x", "nodes is not a whole number"),
        ("dev bucket=s3://mine", "bucket=s3"),
        ("dev put-ms=45 sigma=1", "put-ms, sigma: only with bucket=s3"),
        ("dev bucket=s3 put-ms=-1", "put-ms is not a number"),
        ("dev bucket=s3 sigma=nan", "sigma is not a number"),
        ("dev bucket=s3 get-ms=soon", "get-ms is not a number"),
        ("dev bucket=s3 put-delay-ms=5", "with bucket=s3 it is put-ms=N"),
    ],
)
def test_options_out_of_range_or_without_effect_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_target(text)


def test_a_folder_is_a_checkout_with_its_environment(tmp_path: Path) -> None:
    assert headrace_command(str(tmp_path)) == [str(tmp_path / ".venv" / "bin" / "headrace")]
    assert headrace_command("env A=1 headrace") == ["env", "A=1", "headrace"]


def test_settings_of_a_target_come_before_what_the_bench_sets() -> None:
    """load/benchmarks/tls.py gives two listeners: both must be opened, or its clients wait for the second one."""
    both = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:9093"
    assert server_flags({"listeners": both, "linger.ms": "5"}) == [
        *("--http-port", "0", "--log-level", "warning", "--listeners", both, "--linger-ms", "5")
    ]
