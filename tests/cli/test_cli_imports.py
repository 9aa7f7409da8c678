"""Commands import what they use: counted in modules, as a time would depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES_MAX = 220
"""Of an interpreter that has printed the help: argparse and importlib.metadata are most of them (about 160)."""
SERVICE = ("psycopg", "aioboto3", "botocore", "fastapi", "uvicorn", "headrace.agent", "headrace.compactor")
"""What only a process that serves, or opens metastore and bucket, needs."""
CLIENT = ("kio", "numpy", "rich", "msgspec", "asyncio", "aiokafka", "prometheus_client", "headrace.metastore")
RUN = """\
import contextlib, io, sys
from headrace.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    main(sys.argv[1:])
assert "headrace" in printed.getvalue()
print(*sys.modules)
"""


def _modules(*words: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True, timeout=120)
    return set(ended.stdout.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["version"], ["version", "--help"]])
def test_the_overview_and_the_version_import_no_dependency(words: list[str]) -> None:
    imported = _modules(*words)
    assert not imported & {*SERVICE, *CLIENT}
    assert len(imported) <= MODULES_MAX, sorted(imported)


@pytest.mark.parametrize(
    "command", ["agent", "compactor", "topics", "groups", "configs", "records", "cluster", "shell", "console"]
)
def test_help_and_tools_import_no_service(command: str) -> None:
    assert not _modules(command, "--help") & set(SERVICE)
