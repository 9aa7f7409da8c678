"""The doctor on a running cluster of two agents, and on agents that advertise what is at one of its addresses."""

from __future__ import annotations

import random

from headrace.cli.doctor import command
from headrace.config.free_ports import free_ports
from headrace.config.settings import Settings
from headrace.metastore.postgres.formatted import formatted_cluster_id
from load.dev_server import DevServer
from tests.cli.doctor.world import ShiftedClock, at, examined_cluster, on, port_of, register

ANOTHER_CLUSTER = "8XUwXa9qSyi9tSOquGtauQ"


def settings_of(server: DevServer) -> Settings:
    return Settings(metastore_url=server.metastore_url, bucket=server.bucket, http_port=port_of(server.agents[0].http))


async def test_agents_in_order(server: DevServer) -> None:
    found = await examined_cluster(settings_of(server))
    level, told, _ = found["addresses"]
    assert (level, told) == ("ok", "all 2 advertised addresses are reached from here, and are of this cluster")
    assert (found["clocks"][0], found["ready"][0]) == ("ok", "ok")


async def test_clocks_that_differ_from_this_machines(server: DevServer) -> None:
    settings = settings_of(server)
    findings = await command.examine(settings, ShiftedClock(1_200), random.Random(1))
    found = {f"{each.area} {each.check}": each for each in findings}
    assert found["postgres clock"].level.value == found["cluster clocks"].level.value == "bad"
    assert "this machine's clock is 1200.0 s ahead of the database's" in found["postgres clock"].found
    assert "the clock of agent 1, 2 is " in found["cluster clocks"].found, "they are on one machine"
    assert "s behind this machine's" in found["cluster clocks"].found


async def test_an_agent_that_does_not_tell_its_clock(server: DevServer) -> None:
    (port,) = free_ports(1)
    settings = Settings(metastore_url=server.metastore_url, http_port=port)
    level, told, to_do = (await examined_cluster(settings))["clocks"]
    assert (level, told.startswith(f"not known: agents that do not answer at http.port={port}")) == ("unknown", True)
    assert "run the doctor on their machines" in str(to_do)


async def test_an_address_of_another_cluster(server: DevServer, metastore_url: str) -> None:
    port = port_of(server.agents[0].kafka)
    on(metastore_url, f"UPDATE cluster SET cluster_id = '{ANOTHER_CLUSTER}'")
    await register(metastore_url, 7, listener=at(port))
    level, told, to_do = (await examined_cluster(Settings(metastore_url=metastore_url)))["addresses"]
    reached = f"reached, and it belongs to another cluster: {formatted_cluster_id(server.metastore_url)}"
    assert (level, told) == ("bad", f"agent 7 advertises PLAINTEXT://127.0.0.1:{port}: {reached}")
    assert "advertised.listeners" in str(to_do)


async def test_an_address_of_an_http_server(server: DevServer, metastore_url: str) -> None:
    port = port_of(server.agents[0].http)
    await register(metastore_url, 7, listener=at(port))
    level, told, to_do = (await examined_cluster(Settings(metastore_url=metastore_url)))["addresses"]
    assert (level, told.startswith(f"agent 7 advertises PLAINTEXT://127.0.0.1:{port}: ")) == ("bad", True)
    assert "reached, and it does not speak Kafka" in told
    assert "advertised.listeners" in str(to_do)


async def test_two_agents_at_one_address(server: DevServer, metastore_url: str) -> None:
    port = port_of(server.agents[0].kafka)
    on(metastore_url, f"UPDATE cluster SET cluster_id = '{formatted_cluster_id(server.metastore_url)}'")
    for node_id in (7, 8):
        await register(metastore_url, node_id, listener=at(port))
    level, told, _ = (await examined_cluster(Settings(metastore_url=metastore_url)))["addresses"]
    assert (level, "agents advertise one address" in told, "agent 7: " in told) == ("warn", True, True)
