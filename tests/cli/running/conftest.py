"""One running cluster of two agents for all tests of this folder; each names its topics, groups and users."""

from __future__ import annotations

from tests.cli.conftest import SETTINGS
from tests.forked_cluster import shared_cluster

server = shared_cluster(scope="package", agents=2, settings=SETTINGS)
