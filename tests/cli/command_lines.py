"""What tests of the command line say to it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.main import main

Run = Callable[..., Any]
"""The fixture `run`."""
SECONDS_MAX = 300


def json_runner(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command against a cluster with --json; what it printed, decoded. A number is its exit status."""

    def run(*words: str, status: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "-b", bootstrap, "--json"]) == status
        shown = capsys.readouterr()
        if status:
            return shown.err
        lines = [json.loads(line) for line in shown.out.splitlines()]
        return lines[0] if len(lines) == 1 and words[1] != "consume" else lines

    return run


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """The bytes are standard input, which is no terminal."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def produce(run: Run, monkeypatch: pytest.MonkeyPatch, topic: str, *lines: str, options: tuple[str, ...] = ()) -> Any:
    """`records produce`, with these lines."""
    type_in(monkeypatch, "".join(f"{line}\n" for line in lines).encode())
    return run("records", "produce", topic, *options)


def told(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """The first answer that will do.

    Metadata does not wait for the log: the agent that answers may learn of a change by another a moment later.
    """
    until = time.monotonic() + SECONDS_MAX
    while not holds(answer := ask()):
        assert time.monotonic() < until, answer
    return answer
