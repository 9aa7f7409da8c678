"""All tests of the metastore call its operations with arguments that change while they wait."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.live_arguments import spoil_arguments


@pytest.fixture(autouse=True)
def arguments_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """See tests/live_arguments.py."""
    spoil_arguments(monkeypatch, PostgresMetastore)
