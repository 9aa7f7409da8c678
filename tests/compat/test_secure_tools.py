"""Kafka's own tools and Java clients over SASL_SSL and with certificates, on a cluster that enforces ACLs."""

from __future__ import annotations

import base64
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.config.settings import STANDARD_AUTHORIZER
from tests.agent_process import SECONDS_MAX, format_storage
from tests.faults.secure_cluster import SecureCluster, java_settings, secure_cluster
from tests.java_program import java_command, run_java
from tests.tools import JAVA_LIBRARIES, KAFKA_JARS

HERE = Path(__file__).parent
ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
BROKERS = ("--describe", "--entity-type", "brokers")
ORDERS = ("--allow-principal", "User:CN=orders", "--producer", "--topic", "tools-orders")


class Tools:
    """Kafka's tools in one JVM, as users of a cluster."""

    def __init__(self, cluster: SecureCluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory
        self._process = subprocess.Popen(
            java_command(HERE / "KafkaTools.java", f"{KAFKA_JARS}/*"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(SECONDS_MAX)

    def _run(self, user: str, tool: str, *arguments: str) -> tuple[int, str]:
        """Exit status and what is printed, over SASL_SSL with SCRAM-SHA-512."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        config = java_settings(self._cluster, self._directory, "SCRAM-SHA-512", user)
        bootstrap = ("--bootstrap-server", self._cluster.client, "--command-config", str(config))
        self._process.stdin.write("\t".join([tool, *bootstrap, *arguments]) + "\n")
        self._process.stdin.flush()
        status, _, printed = self._process.stdout.readline().rstrip("\n").partition(" ")
        return int(status), base64.b64decode(printed).decode()

    def printed(self, tool: str, *arguments: str) -> str:
        """Return what is printed by a tool that succeeds, as the user who may do everything."""
        status, printed = self._run("orders", tool, *arguments)
        assert status == 0, printed
        return printed

    def refused(self, error: str, tool: str, *arguments: str) -> None:
        """The tool ends with this error, as the user without rights."""
        status, printed = self._run("guest", tool, *arguments)
        assert status == 1
        assert error in printed

    def until(self, holds: Callable[[str], object], tool: str, *arguments: str) -> None:
        """Return when it holds for what the tool prints: the agent may read a change a moment later."""
        until = time.monotonic() + SECONDS_MAX
        while not holds(printed := self.printed(tool, *arguments)):
            assert time.monotonic() < until, printed


ADOPTED = "group.initial.rebalance.delay.ms"
"""The agent's file sets it; 30 s after its start the cluster takes that value (decisions/0033)."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, module_metastore_url: str) -> Iterator[SecureCluster]:
    """One agent. The user "orders" may do everything, "guest" nothing."""
    folder = tmp_path_factory.mktemp("secure")
    (folder / "bucket").mkdir()
    settings: dict[str, object] = {
        "metastore.url": module_metastore_url,
        "bucket": (folder / "bucket").as_uri(),
        ADOPTED: 0,
        "linger.ms": 5,
        "log.level": "error",
    }
    format_storage(settings)
    more = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:orders;User:ANONYMOUS"}
    with secure_cluster(folder, settings, 1, more) as running:
        running.user("guest")
        yield running


@pytest.fixture
def tools(cluster: SecureCluster, tmp_path: Path) -> Iterator[Tools]:
    running = Tools(cluster, tmp_path)
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.needs("kafka")
@pytest.mark.requirement("C13.2", "X2")
def test_kafkas_tools_over_sasl_ssl(cluster: SecureCluster, tools: Tools) -> None:
    _acls(tools)
    _users_and_quotas(cluster, tools)
    _tokens(tools)
    _defaults(tools)


def _acls(tools: Tools) -> None:
    printed = tools.printed(ACLS, "--add", *ORDERS)
    assert "principal=User:CN=orders, host=*, operation=WRITE, permissionType=ALLOW" in printed
    listing = ("--list", "--topic", "tools-orders")
    tools.until(lambda printed: "operation=DESCRIBE, permissionType=ALLOW" in printed, ACLS, *listing)
    for refused in (("--add", *ORDERS), listing, ("--remove", "--force", *ORDERS)):
        tools.refused("ClusterAuthorizationException", ACLS, *refused)
    tools.printed(ACLS, "--remove", "--force", *ORDERS)
    tools.until(lambda printed: "operation" not in printed, ACLS, *listing)


def _users_and_quotas(cluster: SecureCluster, tools: Tools) -> None:
    alice = ("--entity-type", "users", "--entity-name", "alice")
    credential = "SCRAM-SHA-512=[iterations=4096,password=correct horse]"
    tools.printed(CONFIGS, "--alter", *alice, "--add-config", credential)
    tools.until(lambda printed: "'alice' are SCRAM-SHA-512=iterations=4096" in printed, CONFIGS, "--describe", *alice)
    login = cluster.settings("SCRAM-SHA-512", "alice")
    assert AdminClient(login).list_topics(timeout=SECONDS_MAX).brokers
    tools.refused("ClusterAuthorizationException", CONFIGS, "--describe", *alice)
    tools.printed(CONFIGS, "--alter", *alice, "--add-config", "producer_byte_rate=1024,request_percentage=50")
    tools.until(lambda printed: "producer_byte_rate=1024.0" in printed, CONFIGS, "--describe", *alice)
    clients = ("--entity-type", "clients", "--entity-default")
    tools.printed(CONFIGS, "--alter", *clients, "--add-config", "consumer_byte_rate=2048")
    tools.until(lambda printed: "consumer_byte_rate=2048.0" in printed, CONFIGS, "--describe", *clients)
    tools.printed(CONFIGS, "--alter", *alice, "--delete-config", "SCRAM-SHA-512")
    tools.until(lambda printed: "SCRAM-SHA-512" not in printed, CONFIGS, "--describe", *alice)
    with pytest.raises(KafkaException):
        AdminClient(login).list_topics(timeout=2)
    assert "producer_byte_rate" in tools.printed(CONFIGS, "--describe", *alice)
    tools.printed(CONFIGS, "--alter", *alice, "--delete-config", "producer_byte_rate,request_percentage")
    tools.until(lambda printed: "alice" not in printed, CONFIGS, "--describe", *alice)


def _tokens(tools: Tools) -> None:
    made = tools.printed(TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:renewer")
    found = re.search(r"^\S+\s+(\S+={0,2})\s+User:orders", made, re.MULTILINE)
    assert found is not None, made
    hmac, described = found[1], ("--describe", "--owner-principal", "User:orders")
    tools.until(lambda printed: hmac in printed, TOKENS, *described)
    renewed = tools.printed(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "Completed renew operation" in renewed
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    tools.refused("DelegationTokenOwnerMismatchException", TOKENS, *expire)
    assert "Completed expire operation" in tools.printed(TOKENS, *expire)
    tools.until(lambda printed: hmac not in printed, TOKENS, *described)


def _defaults(tools: Tools) -> None:
    """Configs that were not set are shown as defaults; others have their source."""
    tools.printed(TOPICS, "--create", "--topic", "plain")
    tools.printed(TOPICS, "--create", "--topic", "own", "--config", "retention.ms=5000")
    tools.until(lambda printed: {"plain", "own"} <= set(printed.split()), TOPICS, "--list")
    shown = tools.printed(TOPICS, "--describe")
    configs = dict(re.findall(r"^Topic: (\S+)\s.*\bConfigs: (.*?)\s*$", shown, re.MULTILINE))
    assert {topic: text for topic, text in configs.items() if text} == {"own": "retention.ms=5000"}
    assert "plain" in configs

    def is_set(*entity: str, with_all: bool = True) -> dict[str, str]:
        """Return each config that a describe shows with another source than its default."""
        lines = tools.printed(CONFIGS, "--describe", *entity, *(["--all"] if with_all else [])).splitlines()[1:]
        found = [re.fullmatch(r"  (\S+)=(.*) sensitive=\w+ synonyms=\{(.*)\}", line) for line in lines]
        assert None not in found, lines
        sources = {match[1]: match[3] for match in found if match}
        assert sources or not with_all
        assert all(source for source in sources.values())
        return {
            name: source
            for name, source in sources.items()
            if not source.startswith("DEFAULT_CONFIG:") and name != ADOPTED
        }

    assert is_set("--entity-type", "topics", "--entity-name", "plain") == {}
    own = is_set("--entity-type", "topics", "--entity-name", "own")
    assert own == {"retention.ms": "DYNAMIC_TOPIC_CONFIG:retention.ms=5000, DEFAULT_CONFIG:log.retention.ms=604800000"}
    everywhere = ("--entity-type", "brokers", "--entity-default")
    assert is_set(*everywhere, with_all=False) == {}
    (node,) = re.findall(r"^Dynamic configs for broker (\d+) are:", tools.printed(CONFIGS, *BROKERS), re.MULTILINE)
    broker = ("--entity-type", "brokers", "--entity-name", node)
    assert is_set(*broker, with_all=False) == {}
    of_broker = is_set(*broker)
    assert of_broker
    assert {name: by for name, by in of_broker.items() if not by.startswith("STATIC_BROKER_CONFIG:")} == {}
    tools.printed(CONFIGS, "--alter", *everywhere, "--add-config", "log.retention.ms=7000")
    tools.until(lambda printed: "log.retention.ms=7000" in printed, CONFIGS, "--describe", *everywhere)
    assert set(is_set("--entity-type", "topics", "--entity-name", "plain")) == {"retention.ms"}
    tools.printed(CONFIGS, "--alter", *everywhere, "--delete-config", "log.retention.ms")
    tools.until(lambda printed: "log.retention.ms" not in printed, CONFIGS, "--describe", *everywhere)
    _features(tools)


def _features(tools: Tools) -> None:
    """Each feature has a line with its range and its level."""
    shown = tools.printed(FEATURES, "describe")
    names = ("SupportedMinVersion", "SupportedMaxVersion", "FinalizedVersionLevel", "Epoch")
    pattern = r"^Feature: (\S+)\s+" + r"\s+".join(rf"{name}: (\S+)" for name in names)
    found = re.findall(pattern, shown, re.MULTILINE)
    assert len(found) == len(shown.splitlines())
    assert {"metadata.version", "transaction.version"} <= {name for name, *_ in found}


EXPECTED = """\
createAcls: ClusterAuthorizationException
createTopics: TopicAuthorizationException
producer: TopicAuthorizationException
consumer without group: TopicAuthorizationException
granted createAcls: works
granted createTopics: works
granted producer: works
granted consumer without group: works
consumer, classic group: GroupAuthorizationException
consumer, consumer group: GroupAuthorizationException
granted consumer, classic group: works
granted consumer, consumer group: works
revoked: TopicAuthorizationException
"""
"""What each of Kafka's clients says without rights, with rights on the topic, with those on the group, and after the
right to write is gone."""


@pytest.mark.slow
@pytest.mark.needs("kafka-clients")
@pytest.mark.requirement("C13.2", "X2")
def test_java_clients_without_rights_and_after_the_grant(cluster: SecureCluster, tmp_path: Path) -> None:
    """As a user with a password, and as one with a certificate."""
    ruler = java_settings(cluster, tmp_path, "SCRAM-SHA-512")
    clients = [
        *("password", "User:guest", str(java_settings(cluster, tmp_path, "SCRAM-SHA-512", "guest"))),
        *("certificate", "User:CN=guest", str(java_settings(cluster, tmp_path, "SSL", "guest"))),
    ]
    run = run_java(HERE / "AccessRights.java", f"{JAVA_LIBRARIES}/*", str(ruler), *clients)
    expected = [f"{name} {line}" for name in ("password", "certificate") for line in EXPECTED.splitlines()]
    assert run.stdout.splitlines() == expected, run.stderr[-4000:]
