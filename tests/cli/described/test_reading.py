"""Files that describe a cluster: what they mean, and that everything wrong with them is named at once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from headrace.cli.client.acls import Acl
from headrace.cli.described.diff import make_plan
from headrace.cli.described.documents import FileError, read_documents
from headrace.cli.described.reading import Description, read_description
from headrace.cli.described.schema import described_file, json_schema
from headrace.cli.described.state import ClusterState, ObjectKind, TopicState, UserState
from headrace.storage.errors import InvalidError
from tests.cli.described.described_world import World

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "operate" / "cluster-file.schema.json"
KAFKA_USER = """\
apiVersion: kafka.strimzi.io/v1
kind: KafkaUser
metadata: {name: billing, labels: {strimzi.io/cluster: streams}, uid: 1-2-3}
spec:
  authentication:
    type: scram-sha-512
    password: {valueFrom: {secretKeyRef: {name: billing-secret, key: password}}}
  authorization:
    type: simple
    acls:
      - resource: {type: topic, name: orders, patternType: literal}
        operations: [Read, Describe]
        host: "*"
      - {resource: {type: group, name: billing, patternType: prefix}, operation: Read, type: deny}
  quotas: {producerByteRate: 1048576, requestPercentage: 55}
status: {username: billing}
"""
KAFKA_TOPIC = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaTopic
metadata: {name: orders-1, namespace: streams}
spec: {topicName: Orders, partitions: 3, replicas: 2, config: {retention.ms: 7200000, min.insync.replicas: 2}}
"""


def _read(tmp_path: Path, **files: str) -> Description:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return read_description([str(tmp_path)])


def _errors(tmp_path: Path, **files: str) -> list[str]:
    with pytest.raises(InvalidError) as refused:
        _read(tmp_path, **files)
    first, *lines = str(refused.value).splitlines()
    assert first.endswith("nothing was changed:")
    return [line.strip().replace(f"{tmp_path}/", "") for line in lines]


def test_a_description_may_be_in_several_documents_and_files(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        a="topics: [{name: t1}]\n---\n---\ntopics:\n"
        "  - {name: t2, partitions: 3, configs: {a.b: [x, y], c: true, d: 007, e: no, f: 6.048e+08, g: 1.50}}\n",
        b='users: [{name: u, password: "${file:pw/u}"}]\nclusterConfigs: {log.retention.ms: -1}\n',
    )
    assert found.state == ClusterState(
        topics={
            "t1": TopicState(),
            "t2": TopicState(
                3, None, {"a.b": "x,y", "c": "true", "d": "007", "e": "no", "f": "604800000", "g": "1.50"}
            ),
        },
        users={("u", "SCRAM-SHA-512"): UserState(None, f"${{file:{tmp_path}/pw/u}}")},
        configs={"log.retention.ms": "-1"},
    )
    assert str(found.places[ObjectKind.TOPIC, "t2"]) == f"{tmp_path}/a.yaml:5"
    assert str(found.places[ObjectKind.CONFIG, "log.retention.ms"]) == f"{tmp_path}/b.yaml:2"


def test_everything_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    errors = _errors(
        tmp_path,
        a="topics:\n  - name: t\n    partition_count: 3\n    replicationFactor: many\n  - name: t\n    partitions: 0\n",
        b="users:\n  - {name: u, password: secret}\nacls:\n  - principal: u\n    operations: [Reed]\nfoo: 1\n",
        c="topics: [\n",
        d="topics:\n  - {name: u}\ntopics: []\n",
        e="quotas:\n  - limits: {}\n  - {user: a, ip: b, limits: {producer_byte_rate: 1}}\n"
        "  - {user: a, defaults: [user], limits: {}}\n",
        f="- a\n",
        g="topics: {name: x}\nclusterConfigs: {a: {b: c}}\n",
        h="acls:\n  - {principal: User:a, resource: {type: topic}, operations: [Read]}\n",
    )
    expected = [
        "a.yaml:3: topics.partition_count: unknown field",
        "a.yaml:4: topics.replicationFactor: expected `int | null`, got `str`",
        "a.yaml:5: topic t is described twice, first in a.yaml:2",
        "a.yaml:6: topics.partitions: expected `int` >= 1",
        "b.yaml:2: users.password: expected `str` matching regex",
        "b.yaml:4: acls.principal: expected `str` matching regex",
        "b.yaml:5: acls.operations[0]: invalid enum value 'Reed'",
        "b.yaml:6: unknown field `foo`",
        "c.yaml:2: not YAML",
        "d.yaml:3: `topics` is given twice, first in line 1",
        "e.yaml:2: quotas: of whom?",
        "e.yaml:3: quotas: ip excludes user and clientId",
        "e.yaml:4: quotas.defaults: `user` has a name, too",
        "f.yaml:1: the document is not a mapping",
        "g.yaml:1: `topics` is not a list",
        "g.yaml:2: clusterConfigs",
        "h.yaml:2: acls.resource.name is missing",
    ]
    missing = [start for start in expected if not any(error.startswith(start) for error in errors)]
    assert not missing, errors
    assert not any("secret" in error for error in errors), "a password in a file is not printed"


@pytest.mark.requirement("X14")
def test_links_are_read_with_references_in_place_of_secrets(tmp_path: Path) -> None:
    source = "bootstrap.servers: 'kafka:9092', topics: ['orders.*', payments]"
    found = _read(
        tmp_path, a=f"links:\n  - {{name: old, configs: {{{source}, sasl.password: '${{env:HEADRACE_LINK_P}}'}}}}\n"
    )
    assert found.state.links == {
        "old": {
            "bootstrap.servers": "kafka:9092",
            "topics": "orders.*,payments",
            "sasl.password": "${env:HEADRACE_LINK_P}",
        }
    }
    assert str(found.places[ObjectKind.LINK, "old"]) == f"{tmp_path}/a.yaml:2"
    errors = _errors(
        tmp_path,
        a="links:\n  - {name: a, configs: {topics: a}}\n  - {name: a/b, configs: {}}\n",
        b=f"links:\n  - {{name: b, configs: {{{source}, sasl.password: hunter2}}}}\n"
        f"  - {{name: c, configs: {{{source}, link.creator: x}}}}\n",
    )
    assert errors == [
        "a.yaml:2: links.configs: bootstrap.servers: name the source: HOST:PORT",
        "a.yaml:3: links.name: expected `str` matching regex '^[a-zA-Z0-9._-]{1,100}$'",
        "b.yaml:2: links.configs: sasl.password: a secret of a link is ${env:HEADRACE_LINK_...} in a file",
        "b.yaml:3: links.configs: link.creator: set by the cluster, not by a file",
    ]


def test_a_directory_without_descriptions_describes_nothing(tmp_path: Path) -> None:
    """Else a wrong path and --prune would delete everything."""
    assert _errors(tmp_path) == [f"{tmp_path}:1: no files: .yaml, .yml, .json"]
    assert _errors(tmp_path, empty="\n# nothing\n") == [f"{tmp_path}:1: nothing is described here"]
    with pytest.raises(InvalidError, match="No such file"):
        read_description([str(tmp_path / "missing.yaml")])


def test_strimzis_documents_are_read(tmp_path: Path) -> None:
    found = _read(tmp_path, user=KAFKA_USER, topic=KAFKA_TOPIC)
    assert found.state == ClusterState(
        topics={"Orders": TopicState(3, 2, {"retention.ms": "7200000", "min.insync.replicas": "2"})},
        acls=frozenset(
            {
                Acl("topic", "orders", "literal", "User:billing", "*", "Read", "allow"),
                Acl("topic", "orders", "literal", "User:billing", "*", "Describe", "allow"),
                Acl("group", "billing", "prefix", "User:billing", "*", "Read", "deny"),
            }
        ),
        users={("billing", "SCRAM-SHA-512"): UserState(None, f"${{file:{tmp_path}/secrets/billing-secret/password}}")},
        quotas={(("user", "billing"),): {"producer_byte_rate": 1048576.0, "request_percentage": 55.0}},
    )


def test_what_means_nothing_of_a_strimzi_document_is_named(tmp_path: Path) -> None:
    user = KAFKA_USER.replace("type: scram-sha-512", "type: tls").replace("  quotas:", "  template: {}\n  quotas:")
    topic = KAFKA_TOPIC.replace("replicas: 2", "replicas: two, extra: 1")
    managed = KAFKA_TOPIC.replace("namespace: streams", 'annotations: {strimzi.io/managed: "false"}')
    errors = _errors(
        tmp_path,
        a=user,
        b=topic,
        c="apiVersion: kafka.strimzi.io/v1\nkind: Kafka\nmetadata: {name: x}\n",
        d=KAFKA_USER.replace("password: {", "pass_word: {"),
        e=managed.replace("topicName: Orders, ", ""),
    )
    expected = [
        "a.yaml:6: `spec.authentication.type: tls` has no meaning here: no certificate is issued here",
        "a.yaml:15: `spec.template` has no meaning here",
        "b.yaml:4: `spec.extra` has no meaning here",
        "b.yaml:4: topics.replicationFactor: expected `int | null`, got `str`",
        "c.yaml:2: `Kafka` has no meaning here",
        "d.yaml:7: `spec.authentication.pass_word` has no meaning here",
        "d.yaml:5: `spec.authentication.password.valueFrom.secretKeyRef` is missing",
        "e.yaml:3: `strimzi.io/managed: false` has no meaning here",
    ]
    missing = [start for start in expected if not any(error.startswith(start) for error in errors)]
    assert not missing, errors


def test_a_user_with_a_certificate_needs_no_password(tmp_path: Path) -> None:
    text = KAFKA_USER.replace("type: scram-sha-512", "type: tls-external").replace(
        "    password: {valueFrom: {secretKeyRef: {name: billing-secret, key: password}}}\n", ""
    )
    found = _read(tmp_path, user=text).state
    assert found.users == {}
    assert {acl.principal for acl in found.acls} == {"User:CN=billing"}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_reads_back_as_the_same_cluster(seed: int, tmp_path: Path) -> None:
    """Applied to an empty cluster it gives the same export."""
    state = World(seed).current
    text = described_file(state)
    found = _read(tmp_path, exported=text) if text != "{}\n" else Description(ClusterState())
    assert make_plan(found.state, state).steps == make_plan(state, found.state).steps == ()
    assert described_file(found.state) == text
    jsonschema.validate(yaml.safe_load(text), json.loads(json_schema()))


def test_texts_that_look_like_other_types_survive(tmp_path: Path) -> None:
    values = {
        "a": "no",
        "b": "1_000",
        "c": "0x10",
        "d": "1e3",
        "e": "null",
        "f": "",
        "g": "true",
        "h": "12:30",
        "i": "-1",
    }
    values |= {"j": "1.50", "k": "0123", "l": "x: y #z", "m": "é\n", "n": "True"}
    state = ClusterState({"t": TopicState(1, 1, values)})
    assert _read(tmp_path, exported=described_file(state)).state.topics["t"].configs == values


def test_the_schema_is_the_one_of_the_types() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == json_schema(), "run `make docs`"


def test_the_schema_refuses_what_the_command_refuses() -> None:
    schema = json.loads(json_schema())
    for wrong in ({"topics": [{"title": "x"}]}, {"topics": [{"name": "x", "partitions": 0}]}, {"foo": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    jsonschema.validate({"users": [{"name": "u", "password": "${env:U}"}]}, schema)


def test_the_file_of_the_page_about_schemas_describes_what_a_registry_needs(tmp_path: Path) -> None:
    page = (SCHEMA_FILE.parents[1] / "start" / "SCHEMAS.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = _read(tmp_path, registry=text).state
    assert found.topics == {"_schemas": TopicState(1, None, {"cleanup.policy": "compact"})}
    assert {acl.principal for acl in found.acls} == {"User:registry"}


def _aliases(levels: int) -> str:
    lines = [f"- &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, levels + 1)]
    return "topics:\n- &a0 [x]\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_aliases(9), "aliases repeat more than 200000 values"),
        (_aliases(60), "aliases repeat more than 200000 values"),
        ("topics: &a\n- *a\n", "an alias contains itself"),
        ("topics: &a {configs: *a}\n", "an alias contains itself"),
        ("topics: " + "[" * 3_000 + "]" * 3_000, "is nested deeper than 50 parts"),
        ("topics: " + "[" * 60 + "]" * 60, "is nested deeper than 50 parts"),
    ],
)
def test_a_small_file_stays_small(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    errors: list[FileError] = []
    documents = read_documents([str(file)], errors)
    assert [why in str(error) for error in errors] == [True]
    assert documents == []


def test_aliases_of_ordinary_files_and_long_numbers_are_read(tmp_path: Path) -> None:
    shared = "&c {retention.ms: 5, segment.ms: 6}"
    topics = "".join(f"- {{name: t{number}, configs: {'*c' if number else shared}}}\n" for number in range(3_000))
    file = tmp_path / "cluster.yaml"
    file.write_text(f"topics:\n{topics}")
    errors: list[FileError] = []
    (document,) = read_documents([str(file)], errors)
    assert (errors, len(document.value["topics"])) == ([], 3_000)
    assert document.value["topics"][2_999]["configs"] == {"retention.ms": 5, "segment.ms": 6}
    file.write_text("topics:\n- {name: t, partitions: " + "9" * 5_000 + "}\n")
    (document,) = read_documents([str(file)], errors)
    assert document.value["topics"][0]["partitions"] == "9" * 5_000
