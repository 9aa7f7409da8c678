"""The settings that the next release refuses: a value that is set applies, with one warning; no other is marked."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from headrace.cli.doctor import host
from headrace.cli.doctor.findings import Level
from headrace.cli.process import serve
from headrace.config import docs
from headrace.config.cluster_values import settings_that_go
from headrace.config.declared import Declared, declared
from headrace.config.load import load
from headrace.config.refused import _REFUSED
from headrace.config.settings import Settings, SettingScope

ROOT = Path(__file__).resolve().parents[2]
GOING = {name: setting for name, setting in declared().items() if setting.goes}
OF_KAFKA = {
    "connections.max.idle.ms",
    "max.connections",
    "max.connections.per.ip",
    "max.connection.creation.rate",
    "socket.request.max.bytes",
    "fetch.max.bytes",
    "broker.heartbeat.interval.ms",
    "initial.broker.registration.timeout.ms",
    "broker.rack",
    "listeners",
    "advertised.listeners",
    "inter.broker.listener.name",
    "controller.listener.names",
    "listener.security.protocol.map",
    "node.id",
    "process.roles",
    "authorizer.class.name",
    "super.users",
    "allow.everyone.if.no.acl.found",
    "delegation.token.secret.key",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
}
"""Kafka's names among the settings of each process, besides those that begin with ssl. or sasl."""


def _other_value(setting: Declared) -> object:
    return not setting.default if isinstance(setting.default, bool) else setting.default + 1


def test_marked_are_own_settings_of_a_process_with_a_reason_of_one_sentence() -> None:
    assert 20 <= len(GOING) <= 30
    assert set(declared()) >= OF_KAFKA
    for name, setting in GOING.items():
        assert setting.scope is SettingScope.PROCESS, name
        assert name not in OF_KAFKA, name
        assert not name.startswith(("ssl.", "sasl.")), name
        assert re.fullmatch(r"[^|]{20,110}\.", setting.goes), name
        assert name not in docs.MATTER


@pytest.mark.parametrize("name", GOING)
def test_a_value_that_is_set_applies_and_is_warned_about_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    setting = declared()[name]
    value = _other_value(setting)
    settings = load(flags={name: str(value).lower()})
    assert getattr(settings, setting.field) == value
    with caplog.at_level(logging.WARNING):
        serve.warn_of_settings_that_go(settings)
    (line,) = caplog.messages
    assert line.startswith(f"setting goes: {name}={str(value).lower()} applies in this release")
    assert f"(default {str(setting.default).lower()}): {setting.goes}" in line


@pytest.mark.parametrize("source", ["file", "environment", "flags"])
def test_each_source_counts_also_with_the_default_as_value(source: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.properties"
    file.write_text("linger.idle.ms=3\nlinger.ms=100\n" if source == "file" else "")
    environ = {"HEADRACE_LINGER_IDLE_MS": "3", "HEADRACE_LINGER_MS": "100"} if source == "environment" else {}
    flags = {"linger.idle.ms": "3", "linger.ms": "100"} if source == "flags" else {}
    (one,) = settings_that_go(load(path=file, environ=environ, flags=flags))
    assert (one.name, one.value, one.default) == ("linger.idle.ms", "3", "3")


def test_a_setting_of_several_sources_is_one(tmp_path: Path) -> None:
    file = tmp_path / "agent.properties"
    file.write_text("store.retries=4\n")
    (one,) = settings_that_go(load(path=file, environ={"HEADRACE_STORE_RETRIES": "3"}, flags={"store.retries": 2}))
    assert one.value == "2"


def test_without_one_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    stays = dict.fromkeys(("linger.ms", "flush.early.per.second", "node.id"), "7")
    for settings in (Settings(), load(flags=stays)):
        with caplog.at_level(logging.WARNING):
            serve.warn_of_settings_that_go(settings)
        assert not caplog.messages
        assert not list(host.judge_settings(settings))


def test_the_doctor_names_each() -> None:
    findings = list(host.judge_settings(load(flags={"store.retries": "4", "feed.follow.all": "true"})))
    assert [finding.found.split(" ")[0] for finding in findings] == ["feed.follow.all=true", "store.retries=4"]
    assert all(finding.level is Level.WARN and finding.to_do.startswith("remove it") for finding in findings)


def test_the_name_of_the_field_is_no_setting() -> None:
    with pytest.raises(Exception, match=re.escape("unknown setting set.that.go")):
        load(flags={"set.that.go": "store.retries"})


def test_the_page_has_them_in_its_last_table_only() -> None:
    others, last = docs.markdown().split("\n## Settings that go\n")
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|$", last, re.MULTILINE)
    assert {name: why for name, _, why in rows} == {name: setting.goes for name, setting in GOING.items()}
    shown = re.findall(r"^\| `([\w.]+)` \|", others, re.MULTILINE)
    assert sorted([*shown, *GOING]) == sorted([*declared(), "process", "cluster"])


def test_no_file_that_users_copy_and_no_reason_of_a_refusal_names_one() -> None:
    names = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)" for name in GOING))
    samples = [*ROOT.glob("deploy/**/*"), *ROOT.glob("examples/**/*")]
    texts = {str(path): path.read_text(errors="replace") for path in samples if path.is_file() and _is_sample(path)}
    assert len(texts) > 50
    assert not {path: found for path, text in texts.items() if (found := names.findall(text))}
    assert not {key: found for key, text in _REFUSED.items() if (found := names.findall(text))}


def _is_sample(path: Path) -> bool:
    """The chart's schema is left out: it has every setting that is accepted."""
    return path.name != "values.schema.json" and "__pycache__" not in path.parts
