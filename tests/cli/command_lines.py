"""What tests of the command line say to it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
"""The fixture `run`."""


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """The bytes stand on standard input, which is no terminal."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def produce(run: Run, monkeypatch: pytest.MonkeyPatch, topic: str, *lines: str, options: tuple[str, ...] = ()) -> Any:
    """`records produce`, with these lines."""
    type_in(monkeypatch, "".join(f"{line}\n" for line in lines).encode())
    return run("records", "produce", topic, *options)
