"""A port that another process has: one line that says what to do, and status 1."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_process import ended_agent, format_storage


@pytest.fixture
def places(metastore_url: str, tmp_path: Path) -> list[str]:
    """A formatted cluster, as flags."""
    return format_storage({"metastore.url": metastore_url, "bucket": tmp_path.as_uri(), "log.level": "warning"})


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


def _started(command: str, *flags: str) -> subprocess.CompletedProcess[str]:
    if command == "agent":
        return ended_agent(flags)
    process = [sys.executable, "-m", "headrace.cli.main", command, *flags]
    return subprocess.run(process, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("command", "setting", "other"),
    [("agent", "http.port", "listeners"), ("agent", "listeners", "http.port"), ("compactor", "http.port", None)],
)
def test_a_port_in_use_ends_the_process_with_one_line(
    command: str, setting: str, other: str | None, places: list[str], taken: str
) -> None:
    free = _at("0", other) if other else []
    ended = _started(command, *_at(taken, setting), *free, *places)
    assert (ended.returncode, ended.stdout) == (1, "")
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use; choose another" in errors[0]
    assert "Traceback" not in ended.stderr


def _at(port: str, setting: str) -> list[str]:
    return ["--http-port", port] if setting == "http.port" else ["--listeners", f"PLAINTEXT://127.0.0.1:{port}"]
