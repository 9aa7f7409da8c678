"""C17: each setting of KIP-631 works or is refused with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config.declared import declared
from headrace.config.errors import ConfigError
from headrace.config.listeners import BROKER, CONTROLLER, Endpoint, Listeners, for_listener, listeners, roles
from headrace.config.load import load
from headrace.config.refused import why_not_in_files, why_refused
from headrace.config.topic_configs import BROKER_DEFAULTS

REFUSED = [
    "broker.id",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "controller.quorum.voters",
    "controller.quorum.election.backoff.max.ms",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.request.timeout.ms",
    "controller.quorum.retry.backoff.max.ms",
    "controller.quorum.retry.backoff.ms",
    "log.dirs",
    "metadata.log.dir",
    "quorum.voters",
    "sasl.mechanism.controller.protocol",
    "zookeeper.connect",
    "zookeeper.session.timeout.ms",
]
KAFKAS = [
    "background.threads",
    "controller.quorum.bootstrap.servers",
    "controlled.shutdown.max.retries",
    "delete.topic.enable",
    "group.coordinator.threads",
    "group.share.assignors",
    "listener.name.plaintext.plain.sasl.jaas.config",
    "log.cleaner.threads",
    "log.flush.interval.messages",
    "log.flush.scheduler.interval.ms",
    "log.index.interval.bytes",
    "log.roll.hours",
    "log.segment.bytes",
    "metric.reporters",
    "min.insync.replicas",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "offsets.topic.compression.codec",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "queued.max.requests",
    "quota.window.num",
    "remote.log.storage.system.enable",
    "replica.fetch.max.bytes",
    "replica.lag.time.max.ms",
    "sasl.jaas.config",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.keystore.password",
    "ssl.provider",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
    "transaction.two.phase.commit.enable",
    "unclean.leader.election.enable",
]
"""What a server.properties of Kafka's is likely to say."""
SERVED = [
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "controller.listener.names",
    "initial.broker.registration.timeout.ms",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.enable",
    "log.cleaner.io.max.bytes.per.second",
    "node.id",
    "process.roles",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
]


@pytest.mark.requirement("C17")
@pytest.mark.parametrize("name", [*REFUSED, *KAFKAS])
def test_what_has_no_meaning_here_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"{name}=1\n")
    with pytest.raises(ConfigError, match=rf":1: {re.escape(name)} is not used here: \w+"):
        load(path=file)


@pytest.mark.requirement("C17")
def test_the_others_are_settings_and_nothing_is_both() -> None:
    assert declared().keys() >= set(SERVED)
    assert [name for name in declared() if why_refused(name)] == []


def test_cluster_wide_defaults_are_set_while_brokers_run_or_have_nothing_to_act_on() -> None:
    """Those that agents have no setting for."""
    without = BROKER_DEFAULTS.keys() - declared().keys()
    assert all(why_not_in_files(name) for name in without)
    assert "headrace configs set log.cleanup.policy=... --brokers" in (why_not_in_files("log.cleanup.policy") or "")
    assert "retention deletes an extent" in (why_not_in_files("log.index.size.max.bytes") or "")


def test_the_longest_name_has_the_word() -> None:
    assert why_refused("replica.selector.class") != why_refused("replica.fetch.max.bytes")
    assert why_refused("replica") is None
    assert why_refused("replication") is None
    assert why_refused("sasl.mechanism.inter.broker.protocol") != why_refused("sasl.jaas.config")


def _listeners(**given: str) -> Listeners:
    names = {
        "roles": "process.roles",
        "names": "controller.listener.names",
        "on": "listeners",
        "told": "advertised.listeners",
        "between": "inter.broker.listener.name",
        "map": "listener.security.protocol.map",
        "proxied": "proxy.protocol.listeners",
    }
    return listeners(load(flags={names[key]: value for key, value in given.items()}))


@pytest.mark.requirement("C17")
def test_listeners_name_one_for_clients_and_one_for_controllers() -> None:
    found = listeners(
        load(
            flags={
                "listeners": "EXTERNAL://10.1.1.5:9093,CONTROLLER://[::1]:9094",
                "controller.listener.names": "CONTROLLER",
            }
        )
    )
    assert found.serving == (Endpoint("EXTERNAL", "10.1.1.5", 9093),)
    assert found.controller == Endpoint("CONTROLLER", "::1", 9094)
    plain = listeners(load())
    assert (plain.serving, plain.controller) == ((Endpoint("PLAINTEXT", "127.0.0.1", 9092),), None)
    everywhere = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://h:9092"}
    assert listeners(load(flags=everywhere)).serving[0].host == "0.0.0.0"
    apart = {
        "listeners": "CONTROLLER://:9092",
        "controller.listener.names": "CONTROLLER",
        "process.roles": "controller",
    }
    assert listeners(load(flags=apart)).controller == Endpoint("CONTROLLER", "0.0.0.0", 9092), "nothing is advertised"


@pytest.mark.requirement("C17")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"on": "localhost:9092"}, "not of the form"),
        ({"on": "PLAINTEXT://h:99999"}, "not of the form"),
        ({"on": "SASL_SSL://h:1"}, "ssl.keystore.location: listener SASL_SSL uses SASL_SSL and has no key"),
        ({"on": "A://h:1,B://h:1"}, "the same address"),
        ({"on": "A://h:1,B://h:2,C://h:3", "names": "B,C"}, "at most one listener is for controllers"),
        ({"on": "A://h:1", "between": "B"}, "inter.broker.listener.name: not a listener of this broker: B"),
        ({"on": "A://h:1,C://h:2", "names": "C", "between": "C"}, "not a listener of this broker: C"),
        ({"on": "A://h:1,B://:2"}, "B is not set, and clients cannot connect to 0.0.0.0"),
        ({"on": "A://h:1", "proxied": "B"}, "proxy.protocol.listeners: not a listener of this broker: B"),
        ({"on": "A://h:1", "proxied": "A"}, "agents connect to each other without a balancer"),
        ({"on": "A://h:1,B://h:2", "proxied": "B", "between": "B"}, "agents connect to each other without"),
        ({"on": "A://h:1", "map": "A:SSL"}, "ssl.keystore.location: listener A uses SSL and has no key"),
        ({"map": "A:TLS"}, "not of the form NAME:PROTOCOL, with one of PLAINTEXT, SSL"),
        ({"map": "A"}, "not of the form NAME:PROTOCOL"),
        ({"on": "A://h:1,A://h:2"}, "duplicate name"),
        ({"names": "CONTROLLER"}, "not in listeners: CONTROLLER"),
        ({"on": "A://h:1", "names": "C"}, "not in listeners: C"),
        ({"on": "A://h:1,C://h:2", "names": "C", "roles": "broker"}, "does not include controller"),
        ({"on": "C://h:2", "names": "C"}, "no listener is left for clients"),
        ({"told": "localhost:9092"}, r"advertised\.listeners: not of the form"),
        ({"told": "SSL://h:1"}, r"listens as PLAINTEXT, not as SSL"),
        ({"told": "PLAINTEXT://h:1,PLAINTEXT_HOST://localhost:2"}, "not as PLAINTEXT_HOST"),
        ({"told": "EXTERNAL://h:1"}, "listens as PLAINTEXT, not as EXTERNAL"),
        ({"on": "A://:1,C://:2", "names": "C", "told": "C://h:2"}, "listens as A, not as C"),
        ({"told": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to it"),
        ({"told": "PLAINTEXT://[::]:9092"}, "clients cannot connect to it"),
        ({"told": "PLAINTEXT://:9092"}, "clients cannot connect to it"),
        ({"on": "PLAINTEXT://:9092"}, r"PLAINTEXT is not set, and clients cannot connect to 0\.0\.0\.0"),
        ({"told": "PLAINTEXT://[0:0::0]:9092"}, "clients cannot connect to it"),
        ({"told": "PLAINTEXT://[2001:db8]:9092"}, "not an IPv6 address and a port"),
        ({"told": "PLAINTEXT://2001:db8:9092"}, "not an IPv6 address and a port"),
        ({"told": "PLAINTEXT://2001:db8::1"}, "not an IPv6 address and a port|not of the form"),
        ({"on": "PLAINTEXT://[::]:9092"}, r"PLAINTEXT is not set, and clients cannot connect to ::"),
    ],
)
def test_listeners_that_do_not_fit_are_refused_by_name(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _listeners(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on": "PLAINTEXT://0.0.0.0:9092", "told": "PLAINTEXT://broker:29092"}, ("PLAINTEXT", "broker", 29_092)),
        ({"on": "PLAINTEXT://:0", "told": "PLAINTEXT://localhost:0"}, ("PLAINTEXT", "localhost", 0)),
        ({"on": "X://[::]:9", "told": "X://2001:db8::1:9093"}, ("X", "2001:db8::1", 9_093)),
        ({"on": "X://[::]:9", "told": "X://[::ffff:10.0.0.1]:9"}, ("X", "::ffff:10.0.0.1", 9)),
        ({"on": "external://:9093", "told": "EXTERNAL://[2001:db8::1]:9093"}, ("EXTERNAL", "2001:db8::1", 9_093)),
        ({"on": "PLAINTEXT://10.1.1.5:9093"}, ("PLAINTEXT", "10.1.1.5", 0)),
        ({"on": "PLAINTEXT://:9093", "told": "PLAINTEXT://h:0"}, ("PLAINTEXT", "h", 0)),
        ({}, ("PLAINTEXT", "127.0.0.1", 0)),
    ],
)
def test_what_is_advertised_to_clients(given: dict[str, str], told: tuple[str, str, int]) -> None:
    assert _listeners(**given).advertised == (Endpoint(*told),)


def test_several_listeners_have_names_and_one_is_for_other_agents() -> None:
    found = _listeners(
        on="INTERNAL://0.0.0.0:9094,PLAINTEXT://0.0.0.0:9092,ZONE_B://10.0.0.1:9095",
        told="PLAINTEXT://broker.example:9092,INTERNAL://10.0.0.1:9094",
        between="internal",
        map="PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,SSL:SSL",
    )
    assert [endpoint.name for endpoint in found.serving] == ["PLAINTEXT", "ZONE_B", "INTERNAL"], "clients' come first"
    assert found.advertised == (
        Endpoint("PLAINTEXT", "broker.example", 9092),
        Endpoint("ZONE_B", "10.0.0.1", 0),
        Endpoint("INTERNAL", "10.0.0.1", 9094),
    )
    assert found.inter_broker == "INTERNAL"
    proxied = _listeners(on="A://h:1,B://h:2", between="B", proxied="a")
    assert proxied.proxied == {"A"}
    alone = _listeners(on="INTERNAL://h:1", between="INTERNAL")
    assert [endpoint.name for endpoint in alone.serving] == ["INTERNAL"], "agents and clients may share one"


@pytest.mark.parametrize("name", ["kafka.host", "kafka.port", "advertised.host", "advertised.port"])
def test_short_forms_are_refused_and_say_what_replaces_them(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*: replaced by (advertised\.)?listeners"):
        load(flags={name: "1"})


@pytest.mark.requirement("C17")
def test_roles_run_together_or_separately() -> None:
    assert roles(load()) == {BROKER, CONTROLLER}
    assert roles(load(flags={"process.roles": "controller"})) == {CONTROLLER}
    with pytest.raises(ConfigError):
        load(flags={"process.roles": "zookeeper"})


@pytest.mark.requirement("C13.2")
def test_a_setting_can_be_given_for_one_listener(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.client.auth=requested\nlistener.name.Ext.ssl.client.auth=required\n")
    environ = {"HEADRACE_LISTENER_NAME_IN_SIDE_SSL_KEYSTORE_LOCATION": "/keys"}
    settings = load(path=file, environ=environ, flags={"listener.name.ext.connections.max.reauth.ms": "7"})
    assert for_listener(settings, "EXT").ssl_client_auth == "required"
    assert for_listener(settings, "ext").connections_max_reauth_ms == 7
    assert for_listener(settings, "OTHER").ssl_client_auth == "requested"
    assert for_listener(settings, "IN_SIDE").ssl_keystore_location == "/keys"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("listener.name.ext.ssl.client.auth", "maybe", "invalid value 'maybe'"),
        ("listener.name.ext.linger.ms", "5", "only the settings of encryption and authentication"),
        ("listener.name.ssl.client.auth", "none", "only the settings of encryption and authentication"),
    ],
)
def test_what_a_listener_cannot_have_is_refused(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(flags={key: value})


@pytest.mark.parametrize("variable", [True, False])
def test_the_setting_that_hedged_after_a_fixed_time_names_the_one_that_replaced_it(
    tmp_path: Path, *, variable: bool
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("" if variable else "store.hedge.after.ms=200\n")
    environ = {"HEADRACE_STORE_HEDGE_AFTER_MS": "200"} if variable else {}
    with pytest.raises(ConfigError, match=r"replaced by store\.hedge\.percent"):
        load(path=path, environ=environ)
