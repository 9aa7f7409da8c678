"""An agent names its advertised addresses that others cannot use, once."""

from __future__ import annotations

import uuid

import pytest

from headrace.agent.cluster.address_check import AddressCheck, complaints
from headrace.metastore.api.agents import SHARED_ADDRESS, FeatureRange, Listener
from headrace.metastore.log.image import AgentImage, MetadataImage

ABLE = {SHARED_ADDRESS: FeatureRange(1, 1)}


def _agent(
    node_id: int, *hosts: str, ports: tuple[int, int] | None = None, fenced: bool = False, epoch: int | None = None
) -> AgentImage:
    """Return the agent with the listeners PLAINTEXT and INTERNAL, as many as there are hosts; its own ports unless
    others are given.
    """
    names = ("PLAINTEXT", "INTERNAL")
    listeners = tuple(
        Listener(name, host, port, 0)
        for name, host, port in zip(names, hosts, ports or (9000 + node_id, 9100 + node_id), strict=False)
    )
    return AgentImage(
        node_id,
        node_id * 10 if epoch is None else epoch,
        uuid.UUID(int=node_id),
        listeners[0].host,
        listeners[0].port,
        None,
        fenced=fenced,
        listeners=listeners,
        features=ABLE,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0"])
def test_an_address_of_this_machine_only_is_named_if_another_agent_is_elsewhere(host: str) -> None:
    own = _agent(1, host, host)
    assert complaints(own, [_agent(2, "127.0.0.1", "localhost")]) == [], "all agents are on one machine"
    first, second = complaints(own, [_agent(2, "10.0.0.2", "10.0.0.2")])
    shown = f"[{host}]" if ":" in host else host
    assert f"listener=PLAINTEXT address={shown}:9001 another_agent=10.0.0.2:9002" in first
    assert f"listener=INTERNAL address={shown}:9101 another_agent=10.0.0.2:9102" in second


def test_each_listener_is_compared_with_the_same_listener() -> None:
    others = [_agent(2, "lb.example", "127.0.0.1")]
    assert complaints(_agent(1, "lb.example", "127.0.0.1"), others) == []
    assert complaints(_agent(1, "127.0.0.1", "127.0.0.1"), others)


def test_agents_with_one_address_get_the_advice_to_share_it() -> None:
    own = _agent(1, "lb.example", "10.0.0.1", ports=(9092, 9094))
    same = _agent(2, "lb.example", "10.0.0.2", ports=(9092, 9094))
    (told,) = complaints(own, [same], "INTERNAL")
    assert "listener=PLAINTEXT address=lb.example:9092 node_ids=[2]" in told
    assert "headrace configs set advertised.shared=true --brokers" in told
    assert complaints(own, [same], "INTERNAL", is_shared=True) == []
    earlier = _agent(2, "lb.example", "10.0.0.2", ports=(9092, 9094), epoch=1)
    assert complaints(own, [earlier], "INTERNAL") == [], "it may be this process before its restart"


def test_an_address_for_agents_is_never_shared() -> None:
    own = _agent(1, "lb.example", "lb.example", ports=(9092, 9094))
    same = _agent(2, "lb.example", "lb.example", ports=(9092, 9094))
    told = complaints(own, [same], "INTERNAL", is_shared=True)
    assert any("agents advertise one address for other agents: listener=INTERNAL" in each for each in told)
    assert any("agents cannot forward: 1, 2" in each for each in told)


def test_a_shared_address_needs_a_listener_for_agents() -> None:
    own, other = _agent(1, "lb.example"), _agent(2, "lb.example")
    (told,) = complaints(own, [other], None, is_shared=True)
    assert "set inter.broker.listener.name" in told


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
