"""Clusters that are thrown away, for planted bugs."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.scan.thrown_away import ThrownAway


@pytest.fixture
def thrown_away(
    postgres_server: EmbeddedPostgres, metastore_template: str, tmp_path_factory: pytest.TempPathFactory
) -> ThrownAway:
    return ThrownAway(postgres_server, metastore_template, tmp_path_factory)
