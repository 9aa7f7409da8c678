"""Settings come from file, environment and flags; the unknown and the unacceptable are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.load import ConfigError, load


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "headrace.properties"
    file.write_text("# a comment\nlinger.ms=50\nnode.id = 3\nbroker.rack=zone-a\n")
    settings = load(path=file, environ={"HEADRACE_LINGER_MS": "60", "HEADRACE_NODE_ID": "4"}, flags={"linger.ms": "70"})
    assert (settings.linger_ms, settings.node_id, settings.broker_rack) == (70, 4, "zone-a")


def test_defaults_are_kafkas_where_kafka_has_one() -> None:
    settings = load()
    assert settings.message_max_bytes == 1_048_588
    assert settings.broker_session_timeout_ms == 18_000
    assert settings.linger_ms == 100


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"linger.m": "100"}, "unknown setting linger.m; did you mean linger.ms?"),
        ({"linger.ms": "3"}, ">= 25"),
        ({"linger.ms": "soon"}, "linger.ms"),
        ({"auto.create.topics.enable": "maybe"}, "auto.create.topics.enable"),
    ],
)
def test_bad_settings_are_refused_by_name(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
        load(flags=flags)


def test_unknown_environment_variable_is_refused_but_for_the_test_suites() -> None:
    with pytest.raises(ConfigError, match="HEADRACE_LINGER"):
        load(environ={"HEADRACE_LINGER": "1"})
    load(environ={"HEADRACE_TEST_S3_SERVER": "/bin/true", "PATH": "/bin"})


def test_a_line_that_is_no_setting_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "headrace.properties"
    file.write_text("\nlinger.ms 50\n")
    with pytest.raises(ConfigError, match=r"headrace\.properties:2"):
        load(path=file)
