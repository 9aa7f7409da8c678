"""Commands import what they use: counted in modules, as a time would depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES_MAX = 220
"""Most modules of an interpreter that has printed the help: argparse and importlib.metadata are most of them (about
160).
"""
SERVICE = ("psycopg", "aioboto3", "botocore", "fastapi", "starlette", "uvicorn", "headrace.agent", "headrace.compactor")
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
    return _printed(RUN, *words)


def _printed(code: str, *words: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=300
    )
    return set(ended.stdout.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["version"], ["version", "--help"]])
def test_the_overview_and_the_version_import_no_dependency(words: list[str]) -> None:
    imported = _modules(*words)
    assert not imported & {*SERVICE, *CLIENT}
    assert len(imported) <= MODULES_MAX, sorted(imported)


@pytest.mark.parametrize(
    "command",
    [
        *("agent", "compactor", "topics", "shell", "console"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("groups", "configs", "records", "cluster")),
    ],
)
def test_help_and_tools_import_no_service(command: str) -> None:
    assert not _modules(command, "--help") & set(SERVICE)


LOAD = "import headrace.cli.process.loaded"
HYPOTHESIS = "import hypothesis.strategies"
PRINT = "import sys; print(*sys.modules)"


def test_an_agent_loads_no_worker_no_models_of_pages_and_nothing_of_the_tests() -> None:
    """kio imports Hypothesis where it is installed. The console has FastAPI, which loads for a quarter of a second."""
    imported = _printed(f"{LOAD}; {PRINT}")
    assert {"kio.static", "starlette", "psycopg"} < imported
    unneeded = ("hypothesis", "pytest", "headrace.compactor", "fastapi", "pydantic")
    assert not {name for name in imported if name.startswith(unneeded)}


@pytest.mark.parametrize(
    "code",
    [f"{LOAD}; {HYPOTHESIS}; {PRINT}", pytest.param(f"{HYPOTHESIS}; {LOAD}; {PRINT}", marks=pytest.mark.slow)],
)
def test_hypothesis_can_be_imported_next_to_an_agents_code(code: str) -> None:
    assert "hypothesis.strategies" in _printed(code)
