"""`headrace cluster plan`, `apply` and `export` against running clusters: one of two agents, and an empty one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.described.file_checks import (
    Files,
    check_apply,
    check_cluster_configs,
    check_emptied,
    check_export,
    check_export_from_another,
    check_impossible,
    check_named_configs,
)
from tests.forked_cluster import shared_cluster

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "CLUSTER_FILES.md"
SECONDS_MAX = 600
COMMAND = f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli.main "$@"\n'


empty = shared_cluster()


@pytest.fixture
def files(server: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path / "files", server.bootstrap, capsys)


def test_apply_is_idempotent_and_can_be_interrupted(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    check_apply(files, monkeypatch)
    check_emptied(files)


def test_what_is_impossible_is_named_at_once(files: Files) -> None:
    check_impossible(files, refused_by_cluster="no.such.setting")


def test_an_export_applied_to_an_empty_cluster_gives_the_same_export(
    files: Files, empty: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Files(tmp_path / "empty", empty.bootstrap, capsys)
    check_export(files, target)
    check_cluster_configs(files, target)
    check_named_configs(files, target)
    check_emptied(files)


def test_an_export_from_another_cluster_is_applied_once_its_users_have_passwords(
    files: Files, empty: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Files(tmp_path / "target", empty.bootstrap, capsys)
    head = check_export_from_another(files, target)
    assert "put those of ann, bob into the files" in head
    check_emptied(files)


def test_fewer_partitions_need_a_flag(files: Files) -> None:
    files.write("topics: [{name: fewer, partitions: 2}]")
    files.apply()
    files.write("topics: [{name: fewer, partitions: 3}]")
    files.apply()
    files.write("topics: [{name: fewer, partitions: 2}]")
    assert "removes partitions once they are empty: allow it with --allow-fewer-partitions" in files.apply(status=1)
    files.apply("--allow-fewer-partitions", "--yes")
    files.write("topics: [{name: fewer, partitions: 1}, {name: not-made}]")
    assert "0 of 2 steps are done" in files.apply("--allow-fewer-partitions", "--yes", status=1)


def test_people_read_a_plan(files: Files, server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    files.write("topics: [{name: shown, partitions: 2, configs: {retention.ms: 5}}]")
    assert main(["cluster", "plan", "-f", str(files.folder), "-b", server.bootstrap]) == 2
    line, sum_ = capsys.readouterr().out.splitlines()
    assert line == f"+ topic shown: partitions 2, retention.ms 5  [{files.folder}/cluster.yaml:1]"
    assert sum_ == "1 to create"
    assert main(["cluster", "plan", "-f", "/no/such/file", "-b", server.bootstrap]) == 1
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "plan", "--no-such-flag"])
    assert ended.value.code == 1, "2 would say that there is a difference"


@pytest.mark.slow
def test_the_git_workflow_of_the_page_works_as_it_is_written(empty: DevServer, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    (program := tmp_path / "bin" / "headrace").parent.mkdir()
    program.write_text(COMMAND)
    program.chmod(0o755)
    author = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | author | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    environment["HEADRACE_BOOTSTRAP_SERVER"] = empty.bootstrap
    ended = subprocess.run(
        ["bash", "-exc", "\n".join(blocks)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    assert "~ topic billing.invoices: retention.ms 1 -> 604800000" in ended.stdout
    assert "- topic billing.invoices" in ended.stdout
