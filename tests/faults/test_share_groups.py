"""A share group behind one address: each member is connected to any agent, which asks the group's coordinator (X12)."""

from __future__ import annotations

import pytest

from tests.compat.test_share_consumers import PARTITIONS, Heard, Start, produce, start
from tests.faults.shared_cluster import shared_cluster

pytestmark = [pytest.mark.needs("kafka-clients")]

__all__ = ["start"]


@pytest.mark.slow
@pytest.mark.requirement("X12")
def test_members_behind_one_address(module_agent_settings: dict[str, object], start: Start) -> None:
    topic = "one-address"
    with shared_cluster(module_agent_settings, 3) as cluster:
        cluster.topic(topic, PARTITIONS)
        members = [start(cluster.address, topic, 10) for _ in range(3)]
        produce(cluster.address, topic, range(300))
        heard = Heard()
        heard.until_accepted(members, range(300))
        for member in members:
            member.close()
        heard.settle(members)
        assert set(heard.accepted.values()) == {1}
