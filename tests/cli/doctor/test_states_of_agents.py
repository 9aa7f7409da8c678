"""The doctor on agents: their addresses, certificates, clocks, zones and releases.

Fault model: a real agent with a listener with an expired certificate, which is also paused; agents that are
registered and advertise what is at another address: another cluster, an HTTP server, nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.cli.doctor import addresses, agents, cluster, command
from headrace.config.free_ports import free_ports
from headrace.config.settings import Settings
from headrace.metastore.api.agents import LEADER_SPREAD, Listener
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.storage.clock import SystemClock
from load.self_signed import write_certificate
from tests.agent_process import AgentUnderTest, format_storage
from tests.cli.doctor.world import Line, ShiftedClock, lines, on, register
from tests.conftest import Copies

ZONE = "eu-1a"
ANOTHER_CLUSTER = "8XUwXa9qSyi9tSOquGtauQ"


@pytest.fixture(scope="module")
def agent(copies: Copies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentUnderTest, Settings]]:
    """An agent with a listener in clear and one with a certificate of the day before yesterday; and the settings."""
    place = tmp_path_factory.mktemp("agent")
    certificate, key = write_certificate(place, days_left=-2)
    both = place / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    with copies() as url:
        shared = {"metastore.url": url, "bucket": (place / "bucket").as_uri()}
        format_storage(shared)
        listeners = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
        own = {"listeners": listeners, "broker.rack": ZONE, "ssl.keystore.location": both}
        with AgentUnderTest(shared | own) as running:
            yield (
                running,
                Settings(metastore_url=url, bucket=shared["bucket"], http_port=port_of(running.http), broker_rack=ZONE),
            )


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].rstrip("/"))


async def examined(settings: Settings, clock: SystemClock | None = None) -> dict[str, Line]:
    return lines(await cluster.examine(settings, None, clock or SystemClock()))


def at(port: int, name: str = "PLAINTEXT", host: str = "127.0.0.1") -> Listener:
    return Listener(name, host, port, 0)


async def test_an_agent_in_order_with_an_expired_certificate(agent: tuple[AgentUnderTest, Settings]) -> None:
    running, settings = agent
    found = await examined(settings)
    level, told, to_do = found["certificate"]
    assert (level, "SSL://127.0.0.1:" in told, "expired 2 days ago" in told) == ("bad", True, True)
    assert told.startswith(f"the certificate of agent {running.node_id} at ")
    assert "renew it" in str(to_do)
    told = found["addresses"][1]
    assert (found["addresses"][0], told.startswith("all 2 advertised addresses are reached")) == ("ok", True)
    assert [found[check][0] for check in ("clocks", "ready", "zones")] == ["ok", "ok", "ok"]


async def test_clocks_that_differ_from_this_machines(agent: tuple[AgentUnderTest, Settings]) -> None:
    running, settings = agent
    findings = await command.examine(settings, ShiftedClock(1_200), random.Random(1))
    found = {f"{each.area} {each.check}": each for each in findings}
    assert found["postgres clock"].level.value == found["cluster clocks"].level.value == "bad"
    assert "this machine's clock is 1200.0 s ahead of the database's" in found["postgres clock"].found
    assert f"the clock of agent {running.node_id} is " in found["cluster clocks"].found
    assert "s behind this machine's" in found["cluster clocks"].found


async def test_an_agent_that_does_not_tell_its_clock(agent: tuple[AgentUnderTest, Settings]) -> None:
    (port,) = free_ports(1)
    level, told, to_do = (await examined(Settings(metastore_url=agent[1].metastore_url, http_port=port)))["clocks"]
    assert (level, told.startswith(f"not known: agents that do not answer at http.port={port}")) == ("unknown", True)
    assert "run the doctor on their machines" in str(to_do)


async def test_an_agent_with_a_process_that_is_stopped(
    agent: tuple[AgentUnderTest, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lasts, so the cluster counts it as live: only its addresses show it."""
    running, settings = agent
    monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(agents, "ASK_SECONDS", 0.5)
    running.pause()
    try:
        found = await examined(settings)
    finally:
        running.resume()
    assert (found["addresses"][0], "reached, and no Kafka request was answered" in found["addresses"][1]) == (
        "bad",
        True,
    )
    assert found["clocks"][0] == "unknown"


async def test_an_address_of_another_cluster(agent: tuple[AgentUnderTest, Settings], metastore_url: str) -> None:
    port = port_of(agent[0].kafka.split(",")[0])
    on(metastore_url, f"UPDATE cluster SET cluster_id = '{ANOTHER_CLUSTER}'")
    await register(metastore_url, 7, listener=at(port))
    level, told, to_do = (await examined(Settings(metastore_url=metastore_url)))["addresses"]
    reached = f"reached, and it belongs to another cluster: {formatted_cluster_id(agent[1].metastore_url)}"
    assert (level, told) == ("bad", f"agent 7 advertises PLAINTEXT://127.0.0.1:{port}: {reached}")
    assert "advertised.listeners" in str(to_do)


@pytest.mark.parametrize("is_http", [True, False])
async def test_an_address_where_no_agent_is(
    agent: tuple[AgentUnderTest, Settings], metastore_url: str, is_http: bool
) -> None:
    port = port_of(agent[0].http) if is_http else free_ports(1)[0]
    await register(metastore_url, 7, listener=at(port))
    level, told, to_do = (await examined(Settings(metastore_url=metastore_url)))["addresses"]
    assert (level, told.startswith(f"agent 7 advertises PLAINTEXT://127.0.0.1:{port}: ")) == ("bad", True)
    assert ("does not speak Kafka" if is_http else "refused") in told
    assert "advertised.listeners" in str(to_do)


async def test_two_agents_at_one_address(agent: tuple[AgentUnderTest, Settings], metastore_url: str) -> None:
    port = port_of(agent[0].kafka.split(",")[0])
    for node_id in (7, 8):
        await register(metastore_url, node_id, listener=at(port))
    level, told, _ = (await examined(Settings(metastore_url=metastore_url)))["addresses"]
    assert (level, "agents advertise one address" in told, "agent 7: " in told) == ("warn", True, True)


async def test_agents_of_two_releases(metastore_url: str) -> None:
    (port,) = free_ports(1)
    await register(metastore_url, 1, listener=at(port), without=[LEADER_SPREAD])
    await register(metastore_url, 2, listener=at(port))
    level, told, to_do = (await examined(Settings(metastore_url=metastore_url)))["versions"]
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
    level, told, _ = (await examined(Settings(metastore_url=metastore_url, broker_rack=own)))["zones"]
    assert (level, part in told) == ("warn", True), told


async def test_agents_of_one_host_in_two_zones_and_a_file_with_another(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(agents, "ASK_SECONDS", 0.1)
    for node_id, zone in ((1, "a"), (2, "b")):
        await register(metastore_url, node_id, listener=at(9092 + node_id, host="192.0.2.1"), zone=zone)
    settings = Settings(metastore_url=metastore_url, node_id=2, broker_rack="a")
    found = [each.found for each in await cluster.examine(settings, None, SystemClock()) if each.check == "zones"]
    assert found == [
        "agents at one host, 192.0.2.1, name different zones: a: 1; b: 2",
        "these settings say node.id=2 broker.rack=a, and it runs in zone b",
    ]
