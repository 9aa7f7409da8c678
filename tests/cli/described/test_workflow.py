"""The git workflow of docs/operate/CLUSTER_FILES.md works as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from load.dev_server import DevServer

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "CLUSTER_FILES.md"
SECONDS_MAX = 600
COMMAND = f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli.main "$@"\n'


def test_the_page_works_as_it_is_written(server: DevServer, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    (program := tmp_path / "bin" / "headrace").parent.mkdir()
    program.write_text(COMMAND)
    program.chmod(0o755)
    author = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | author | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    environment["HEADRACE_BOOTSTRAP_SERVER"] = server.bootstrap
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
