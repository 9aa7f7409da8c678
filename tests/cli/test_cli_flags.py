"""Flags on a first day: a misspelt one, another tool's, the wrong port, the variable, the defaults, Tab."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from headrace.cli import dev
from headrace.cli.commands import COMMANDS, make_parser
from headrace.cli.main import main
from headrace.cli.options import STORE
from headrace.cli.topic_tables import FROM_AGENT
from headrace.config.declared import OF_BUCKETS, declared
from headrace.config.load import BOOTSTRAP_SERVER, load
from headrace.config.settings import Settings
from headrace.protocol.client.transport import client_config
from headrace.scan.cluster import ASKED
from headrace.storage.objects.open import StoreOptions


def _shown(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status
    shown = capsys.readouterr()
    return shown.out if status == 0 else shown.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["agent", "--lingr-ms", "5"], "--linger-ms"),
        (["dev", "--agnets=2"], "--agents"),
        (["topics", "create", "x", "--partition-count", "2"], "--partitions"),
    ],
)
def test_a_misspelt_flag_gets_the_nearest_one(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _shown(capsys, *words, status=2).endswith(f"; did you mean {meant}?\n")


def test_a_flag_that_is_like_no_other_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in _shown(capsys, "version", "--zzzzzzzz", status=2)


def test_a_config_of_a_topic_under_kafkas_flag_gets_the_right_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused = _shown(capsys, "topics", "create", "x", "--config", "retention.ms=5", status=2)
    assert refused.endswith("for a config of a topic: --set retention.ms=5\n")
    named = tmp_path / "a=b.properties"
    named.write_text("client.id=x\n")
    words = ["topics", "list", "--config", str(named)]
    assert make_parser(words).parse_args(words).config == named


def test_the_address_may_be_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (file := tmp_path / "client.properties").write_text("bootstrap.servers=file:1\n")
    assert client_config(None, file).bootstrap_servers == (("file", 1),)
    monkeypatch.setenv(BOOTSTRAP_SERVER, "variable:2")
    assert client_config(None, file).bootstrap_servers == (("variable", 2),)
    assert client_config("flag:3", file).bootstrap_servers == (("flag", 3),)
    assert load(environ={BOOTSTRAP_SERVER: "variable:2"}) == load(), "no setting of an agent"


@pytest.mark.parametrize("command", ["agent", "compactor", "dev", "audit", "export", "shell"])
def test_the_help_has_the_settings_that_matter_and_help_all_has_every_one_that_stays(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _shown(capsys, command, "--help", status=0)
    every = _shown(capsys, command, "--help-all", status=0)
    flags = {name: f"--{name.replace('.', '-')}" for name in declared()}
    assert len([flag for flag in flags.values() if f" {flag} VALUE" in first]) <= 11
    shown = {name for name, flag in flags.items() if f" {flag} VALUE" in every}
    assert shown == {name for name, setting in declared().items() if not setting.goes}
    assert "every other setting" not in first
    assert "every other setting" in every


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    inner = [each for action in commands for each in action.choices.values()]
    return [parser, *(found for each in inner for found in _parsers(each))]


def test_every_default_is_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    seen = 0
    for parser in _parsers(make_parser((), complete=True)):
        text = " ".join(parser.format_help().split())
        for action in parser._actions:
            default = action.default
            if (
                not action.option_strings
                or action.help == argparse.SUPPRESS
                or default in (None, False, [], "==SUPPRESS==")
            ):
                continue
            seen += 1
            assert action.help, f"{parser.prog} {action.option_strings}"
            help_text = parser._get_formatter()._expand_help(action)
            assert f"({default})" in help_text or "default" in help_text, f"{parser.prog} {action.option_strings}"
            assert " ".join(help_text.split()) in text
    assert seen > 10


def test_no_example_has_a_deprecated_flag() -> None:
    deprecated = {f"--{name.replace('.', '-')}" for name, one in declared().items() if "eprecated" in one.meaning}
    for command in COMMANDS:
        assert not {word for word in command.load().DESCRIPTION.split() if word in deprecated}, command.name


def test_tab_completes_commands_flags_and_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "zsh"]) == 0
    assert "#compdef headrace" in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)

    def complete(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in ("headrace", *words))
        code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_headrace; echo ${{COMPREPLY[@]}}"
        ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=300)
        return set(ended.stdout.split())

    assert {"topics", "agent", "completion"} <= complete("")
    assert complete("topics", "cre") == {"create"}
    assert "--partitions" in complete("topics", "create", "--p")
    assert complete("records", "consume", "--format", "j") == {"json"}


@pytest.mark.requirement("X15")
def test_what_passes_on_how_a_bucket_is_reached_knows_every_store() -> None:
    """A scan, tools with -b, `headrace dev` for its tables, and the help of tools."""
    endpoints = {name for name in declared() if name.startswith(OF_BUCKETS) and name.endswith(".endpoint")}
    assert endpoints == {"s3.endpoint", "azure.endpoint", "gcs.endpoint"}
    for known in (ASKED, FROM_AGENT, STORE):
        assert endpoints <= set(known)
    of_stores = {one.name for one in declared().values() if one.field in StoreOptions.__dataclass_fields__}
    assert {name for name in of_stores if not name.startswith(OF_BUCKETS)} == {"upload.parallelism"}


def test_the_process_that_keeps_the_tables_of_dev_has_the_place_of_the_bucket() -> None:
    passed_on = {"azure.endpoint": "http://127.0.0.1:1/a", "store.retries": "1", "linger.ms": "5"}
    child = dev._tables(Settings(bucket="az://account1/c"), "postgresql://x", passed_on)
    words = " ".join(child._arguments)
    assert "--azure-endpoint http://127.0.0.1:1/a" in words
    assert "--store-retries 1" in words
    assert "linger" not in words
