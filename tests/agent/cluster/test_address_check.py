"""An agent names its advertised addresses that others cannot use, once."""

from __future__ import annotations

import uuid

import pytest

from headrace.agent.cluster.address_check import AddressCheck, complaints
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage


def _agent(node_id: int, *hosts: str, fenced: bool = False) -> AgentImage:
    """With the listeners PLAINTEXT and INTERNAL, as many as there are hosts."""
    names = ("PLAINTEXT", "INTERNAL")
    listeners = tuple(
        Listener(name, host, 9092 + number, 0) for number, (name, host) in enumerate(zip(names, hosts, strict=False))
    )
    return AgentImage(
        node_id, node_id * 10, uuid.UUID(int=node_id), hosts[0], 9092, None, fenced=fenced, listeners=listeners
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0"])
def test_an_address_of_this_machine_only_is_named_if_another_agent_is_elsewhere(host: str) -> None:
    own = _agent(1, host, host)
    assert complaints(own, [_agent(2, "127.0.0.1", "localhost")]) == [], "all agents are on one machine"
    first, second = complaints(own, [_agent(2, "10.0.0.2", "10.0.0.2")])
    assert f"listener=PLAINTEXT address={host}:9092 another_agent=10.0.0.2:9092" in first
    assert f"listener=INTERNAL address={host}:9093 another_agent=10.0.0.2:9093" in second


def test_each_listener_is_compared_with_the_same_listener() -> None:
    others = [_agent(2, "lb.example", "127.0.0.1")]
    assert complaints(_agent(1, "lb.example", "127.0.0.1"), others) == []
    assert complaints(_agent(1, "127.0.0.1", "127.0.0.1"), others)


def test_a_complaint_is_logged_once_and_only_about_live_agents(caplog: pytest.LogCaptureFixture) -> None:
    check = AddressCheck(lambda: 1)
    own = _agent(1, "127.0.0.1")
    check(MetadataImage())
    check(MetadataImage(agents={1: own, 2: _agent(2, "10.0.0.2", fenced=True)}))
    assert caplog.messages == []
    for _ in range(3):
        check(MetadataImage(agents={1: own, 2: _agent(2, "10.0.0.2")}))
    (message,) = caplog.messages
    assert "set advertised.listeners to an address of this host" in message
