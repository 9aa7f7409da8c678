"""The units of deploy/systemd: systemd accepts them, and their commands and times are Headrace's."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from tests.deploy.rendering import REPOSITORY

UNITS = sorted((REPOSITORY / "deploy" / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
LASTING = [path for path in SERVICES if path.stem != "headrace-backup"]
PAGE = REPOSITORY / "docs" / "operate" / "MACHINES.md"


def _unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser


def test_systemd_accepts_them(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    (tmp_path / "headrace").write_text("#!/bin/sh\n")
    (tmp_path / "headrace").chmod(0o755)
    for path in UNITS:
        text = path.read_text().replace("/opt/headrace/bin/headrace", str(tmp_path / "headrace"))
        (tmp_path / path.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "headrace" in line]
    assert ours == []


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_service_runs_a_command_that_exists(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, command, *flags = shlex.split(_unit(path)["Service"]["ExecStart"])
    assert program == "/opt/headrace/bin/headrace"
    with pytest.raises(SystemExit) as ended:
        main([command, "--help-all"])
    assert ended.value.code == 0
    known = capsys.readouterr().out
    assert all(flag in known for flag in flags if flag.startswith("--"))


@pytest.mark.parametrize("path", LASTING, ids=lambda path: path.name)
def test_a_process_has_time_to_drain_and_comes_back_always(path: Path) -> None:
    service = _unit(path)["Service"]
    assert int(service["TimeoutStopSec"]) * 1000 >= Settings().shutdown_grace_ms + 10_000
    assert service["Restart"] == "always"
    assert _unit(path)["Unit"]["StartLimitIntervalSec"] == "0", "an outage may last"
    assert int(service["LimitNOFILE"]) > 100_000


def test_the_page_names_each_unit() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for unit in ("headrace-agent", "headrace-compactor", "headrace-backup.timer"):
        assert f"systemctl enable --now {unit}" in text or f" {unit}" in text, unit
