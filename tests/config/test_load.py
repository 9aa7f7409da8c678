"""Settings come from file, environment and flags; the unknown and the unacceptable are refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config.declared import declared
from headrace.config.errors import ConfigError
from headrace.config.load import load, read_properties


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
        ({"linger.ms": "0"}, "linger.ms: invalid value '0' (accepted: 1 to 60000)"),
        ({"linger.ms": "soon"}, "linger.ms: invalid value 'soon'"),
        ({"max.connections": 0}, "max.connections: invalid value 0 (accepted: integer ≥ 1)"),
        ({"metastore.pool.size": 10**20}, "invalid value 100000000000000000000 (accepted: 1 to 10000)"),
        ({"node.id": "one"}, "(accepted: 0 to 999999999)"),
        ({"auto.create.topics.enable": "maybe"}, "(accepted: true, false)"),
        ({"process.roles": "foo"}, "(accepted: broker, controller, compactor, tables, separated by commas)"),
        ({"group.consumer.assignors": "sticky"}, "(accepted: uniform, range, separated by commas)"),
        ({"group.consumer.migration.policy": "both"}, "(accepted: disabled, upgrade, downgrade, bidirectional)"),
        ({"log.level": "loud"}, "(accepted: debug, info, warning, error)"),
    ],
)
def test_bad_settings_are_refused_by_name(flags: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(flags=flags)


def test_no_setting_is_explained_by_a_pattern() -> None:
    """Accepted values are described in words."""
    assert [name for name, setting in declared().items() if set(setting.accepted) & set("^$()*|")] == []


def test_one_message_lists_all_problems(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("linger.ms=0\nbroker.rack=a\nnum.io.threads=8\nno setting\nlinger.m=4\n")
    environ = {"HEADRACE_LOG_LEVEL": "loud", "HEADRACE_NUM_IO_THREADS": "8", "HEADRACE_LINGER_MS": "50"}
    with pytest.raises(ConfigError) as refused:
        load(path=file, environ=environ, flags={"http.port": "-1"})
    first, *told = str(refused.value).splitlines()
    assert first == "7 invalid settings:"
    for line, expected in zip(
        told,
        (
            f"{file}:1: linger.ms: invalid value '0'",
            f"{file}:3: num.io.threads is not used here: an agent uses one event loop",
            f"{file}:4: not a key=value line",
            f"{file}:5: unknown setting linger.m; did you mean linger.ms?",
            "HEADRACE_LOG_LEVEL: log.level: invalid value 'loud'",
            "HEADRACE_NUM_IO_THREADS: not used here: an agent uses one event loop",
            "flags: http.port: invalid value '-1'",
        ),
        strict=True,
    ):
        assert line.strip().startswith(expected)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read: .*nowhere"):
        load(path=tmp_path / "nowhere")
    (tmp_path / "latin").write_bytes(b"broker.rack=z\xfcrich\n")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load(path=tmp_path / "latin")


def test_unknown_environment_variable_is_refused_but_for_the_test_suites() -> None:
    with pytest.raises(ConfigError, match="HEADRACE_LINGER"):
        load(environ={"HEADRACE_LINGER": "1"})
    load(environ={"HEADRACE_TEST_S3_SERVER": "/bin/true", "HEADRACE_LINK_PASSWORD": "of a link", "PATH": "/bin"})


def test_a_line_that_is_no_setting_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "headrace.properties"
    file.write_text("\nlinger.ms 50\n")
    with pytest.raises(ConfigError, match=r"headrace\.properties:2"):
        load(path=file)
    with pytest.raises(ConfigError, match=r"headrace\.properties:2: not a key=value line: linger\.ms \.\.\."):
        read_properties(file)


def test_an_empty_value_leaves_a_setting_unset_that_may_be() -> None:
    """A pod on a node without a zone gets an empty variable."""
    assert load(environ={"HEADRACE_BROKER_RACK": "", "HEADRACE_NODE_ID": ""}) == load()
    with pytest.raises(ConfigError, match=r"linger\.ms: invalid value ''"):
        load(environ={"HEADRACE_LINGER_MS": ""})
