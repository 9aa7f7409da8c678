"""The doctor on agents that are registered and do not run: nothing at their address, zones, releases."""

from __future__ import annotations

import pytest

from headrace.cli.doctor import agents, cluster
from headrace.config.free_ports import free_ports
from headrace.config.settings import Settings
from headrace.metastore.api.agents import LEADER_SPREAD
from headrace.storage.clock import SystemClock
from tests.cli.doctor.world import at, examined_cluster, register


async def test_an_address_where_nothing_is(metastore_url: str) -> None:
    (port,) = free_ports(1)
    await register(metastore_url, 7, listener=at(port))
    level, told, to_do = (await examined_cluster(Settings(metastore_url=metastore_url)))["addresses"]
    assert (level, told) == ("bad", f"agent 7 advertises PLAINTEXT://127.0.0.1:{port}: Connection refused")
    assert "advertised.listeners" in str(to_do)


async def test_agents_of_two_releases(metastore_url: str) -> None:
    (port,) = free_ports(1)
    await register(metastore_url, 1, listener=at(port), without=[LEADER_SPREAD])
    await register(metastore_url, 2, listener=at(port))
    level, told, to_do = (await examined_cluster(Settings(metastore_url=metastore_url)))["versions"]
    assert (level, f"differ in {LEADER_SPREAD}: 0: 1; 10: 2" in told) == ("warn", True)
    assert "finish the upgrade" in str(to_do)


@pytest.mark.parametrize(
    ("zones", "own", "part"),
    [
        (("eu-1a", "EU-1A"), None, "names of zones that may be one: EU-1A: 2; eu-1a: 1"),
        (("eu-1a", None), None, "agents without a zone: 2"),
        (("eu-1a", "eu-1b"), "eu-1c", "these settings say broker.rack=eu-1c, and no live agent is in that zone"),
        (("eu-1a", "-eu-1b"), None, "no agent of zone eu-1b is live (gone: 2)"),
    ],
)
async def test_a_wrong_zone(
    metastore_url: str, zones: tuple[str | None, str | None], own: str | None, part: str
) -> None:
    """A zone with a dash in front: its agent registered and is gone."""
    for node_id, zone in enumerate(zones, 1):
        name = None if zone is None else zone.removeprefix("-")
        (port,) = free_ports(1)
        await register(metastore_url, node_id, listener=at(port), zone=name, is_live=name == zone)
    level, told, _ = (await examined_cluster(Settings(metastore_url=metastore_url, broker_rack=own)))["zones"]
    assert (level, part in told) == ("warn", True), told


async def test_agents_of_one_host_in_two_zones_and_a_file_with_another(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(agents, "ASK_SECONDS", 0.1)
    for node_id, zone in ((1, "a"), (2, "b")):
        await register(metastore_url, node_id, listener=at(9092 + node_id, host="192.0.2.1"), zone=zone)
    settings = Settings(metastore_url=metastore_url, node_id=2, broker_rack="a")
    found = [each.found for each in await cluster.examine(settings, None, SystemClock()) if each.check == "zones"]
    assert found == [
        "agents at one host, 192.0.2.1, name different zones: a: 1; b: 2",
        "these settings say node.id=2 broker.rack=a, and it runs in zone b",
    ]
