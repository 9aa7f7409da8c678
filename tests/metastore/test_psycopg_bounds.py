"""Versions of psycopg that may be installed: what statement.py relies on holds for each of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from psycopg import waiting

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    ("package", "version", "is_allowed"),
    [
        ("psycopg", "3.3.5", False),  # it loses cancellations on Python 3.11
        ("psycopg", "3.3.6", True),
        ("psycopg-pool", "3.2.9", False),  # without drain()
        ("psycopg-pool", "3.3.0", True),
        ("psycopg-pool", "3.4.0", False),  # may keep idle connections in another place
    ],
)
def test_only_versions_that_were_looked_at_are_allowed(package: str, version: str, is_allowed: bool) -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    [required] = [one for one in map(Requirement, project["dependencies"]) if one.name == package]
    assert required.specifier.contains(version) == is_allowed


def test_a_wait_for_the_server_loses_no_cancellation() -> None:
    """With Python 3.11 asyncio.wait_for does."""
    for wait in (waiting.wait_async, waiting.wait_conn_async):
        assert "wait_for" not in wait.__code__.co_names
