"""The doctor on a real agent with a listener with an expired certificate, and on the same agent when it is paused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cli.doctor import agents
from headrace.config.settings import Settings
from load.self_signed import write_certificate
from tests.agent_process import AgentUnderTest, format_storage
from tests.cli.doctor.world import examined_cluster, port_of
from tests.conftest import Copies

pytestmark = pytest.mark.slow
ZONE = "eu-1a"


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


async def test_an_agent_in_order_with_an_expired_certificate(agent: tuple[AgentUnderTest, Settings]) -> None:
    running, settings = agent
    found = await examined_cluster(settings)
    level, told, to_do = found["certificate"]
    assert (level, "SSL://127.0.0.1:" in told, "expired 2 days ago" in told) == ("bad", True, True)
    assert told.startswith(f"the certificate of agent {running.node_id} at ")
    assert "renew it" in str(to_do)
    told = found["addresses"][1]
    assert (found["addresses"][0], told.startswith("all 2 advertised addresses are reached")) == ("ok", True)
    assert [found[check][0] for check in ("clocks", "ready", "zones")] == ["ok", "ok", "ok"]


async def test_an_agent_with_a_process_that_is_stopped(
    agent: tuple[AgentUnderTest, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lasts, so the cluster counts it as live: only its addresses show it."""
    running, settings = agent
    monkeypatch.setattr(agents, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(agents, "ASK_SECONDS", 0.5)
    running.pause()
    try:
        found = await examined_cluster(settings)
    finally:
        running.resume()
    assert (found["addresses"][0], "reached, and no Kafka request was answered" in found["addresses"][1]) == (
        "bad",
        True,
    )
    assert found["clocks"][0] == "unknown"
