"""What a Kafka cluster becomes here: what is kept, what is left out and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.client.acls import Acl
from headrace.cli.described.exporting import KafkaFacts, MovedCluster, comments, move
from headrace.cli.described.reading import read_description
from headrace.cli.described.schema import described_file
from headrace.cli.described.state import ClusterState, TopicState, UserState
from headrace.storage.errors import InvalidError

ACL = Acl("topic", "orders", "literal", "User:ann", "*", "Read", "allow")
FOUND = ClusterState(
    topics={
        "a": TopicState(3, 2, {"retention.ms": "5", "compression.zstd.level": "9", "link.name": "old"}),
        "b": TopicState(1, 2, {"compression.zstd.level": "9", "no.such.config": "x"}),
    },
    acls=frozenset({ACL}),
    users={
        ("ann", "SCRAM-SHA-256"): UserState(8192),
        ("ann", "SCRAM-SHA-512"): UserState(4096),
        ("x", "7"): UserState(1),
    },
    quotas={
        (("user", "ann"),): {"producer_byte_rate": 1000.0, "request_percentage": 25.0},
        (("ip", "host.example"),): {"connection_creation_rate": 5.0},
        (("client-id", None),): {"no_such_rate": 5.0},
    },
    configs={"log.retention.ms": "7000", "num.io.threads": "9", "log.cleaner.threads": "2"},
    groups={"g": {"consumer.session.timeout.ms": "50000", "no.such.config": "1"}},
    client_metrics={"m": {"interval.ms": "60000", "match": "no_selector=x"}},
)
FACTS = KafkaFacts(
    brokers=3,
    of_one_broker={"log.retention.ms": "broker 2"},
    in_files={"super.users": "User:root", "num.partitions": "6", "offsets.topic.num.partitions": "50"},
)


def _moved(facts: KafkaFacts = FACTS) -> MovedCluster:
    return move(FOUND, facts)


def test_what_is_kept_can_be_applied() -> None:
    state = _moved().state
    assert {name: topic.configs for name, topic in state.topics.items()} == {"a": {"retention.ms": "5"}, "b": {}}
    assert (state.topics["a"].partitions, state.topics["a"].replication_factor) == (3, 2)
    assert state.acls == {ACL}
    assert set(state.users) == {("ann", "SCRAM-SHA-256"), ("ann", "SCRAM-SHA-512")}
    assert state.quotas == {(("user", "ann"),): {"producer_byte_rate": 3000.0, "request_percentage": 25.0}}
    assert state.configs == {"log.retention.ms": "7000"}
    assert state.groups == {"g": {"consumer.session.timeout.ms": "50000"}}
    assert state.client_metrics == {"m": {"interval.ms": "60000"}}


@pytest.mark.parametrize(
    "note",
    [
        "topic a, b: compression.zstd.level=9 is left out: not offered, only the default 3: each codec has one fixed",
        "topic b: no.such.config=x is left out: there is no such config here",
        "users: no Kafka shows a password: put those of ann into the files",
        "quotas of user=ann: producer_byte_rate 1000 of each of 3 brokers becomes 3000 of the cluster",
        "quotas of ip=host.example: left out: a quota is of an address here",
        "quotas of client-id=<default>: no_such_rate is left out",
        "clusterConfigs: num.io.threads=9 is left out: an agent uses one event loop",
        "group g: no.such.config=1 is left out: there is no such config here",
        "client metrics m: match=no_selector=x is left out: not a list of selector=pattern",
        "log.retention.ms of broker 2 alone: not exported",
        "server.properties: super.users=User:root: not exported; give it to the agents",
        "server.properties: num.partitions=6: not exported; add it to clusterConfigs",
        "server.properties: offsets.topic.num.partitions=50: there is no topic __consumer_offsets",
    ],
)
def test_everything_else_has_a_note(note: str) -> None:
    assert [each for each in _moved().notes if each.startswith(note)], _moved().notes


def test_what_a_source_does_not_show_has_a_note() -> None:
    notes = _moved(KafkaFacts(has_acls=False, unlisted=("groupConfigs",))).notes
    assert notes[0].startswith("acls: the source has no authorizer")
    assert notes[1] == "groupConfigs: this Kafka does not list them, so none are exported"


def test_quotas_of_a_headrace_stay_as_they_are() -> None:
    assert move(FOUND, KafkaFacts(brokers=1)).state.quotas[(("user", "ann"),)]["producer_byte_rate"] == 1000.0


def test_the_file_is_read_and_names_in_it_are_one_line(tmp_path: Path) -> None:
    state, notes = move(
        ClusterState(groups={"g\n- x: 1": {"a": "1\n2"}}, topics=FOUND.topics, users=FOUND.users), FACTS
    )
    head = list(comments("kafka:9092", FACTS, notes))
    assert not [line for line in head if "\n" in line]
    text = "".join(f"# {line}\n" for line in head) + described_file(state)
    (file := tmp_path / "cluster.yaml").write_text(text)
    described = read_description([str(file)]).state
    assert described.topics == state.topics
    assert {user.password for user in described.users.values()} == {f"${{file:{tmp_path}/secrets/ann}}"}
    (other := tmp_path / "other.yaml").write_text("no: 1\n" + text)
    with pytest.raises(InvalidError, match="unknown field"):
        read_description([str(other)])
