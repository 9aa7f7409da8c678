"""The metastore of a cluster, as its agents see it, in memory."""

from __future__ import annotations

import pytest

from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock


@pytest.fixture
def api(fake_clock: ManualClock) -> FakeClusterApi:
    return FakeClusterApi(fake_clock)
