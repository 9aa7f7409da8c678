"""`headrace shell`: the tree, the commands, the completions, and the sources."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.shell.command import LeaveShell, Shell
from headrace.cli.shell.tree import find, text, tree, walk
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    BrokerEndpoint,
    ConfigRecord,
    CredentialInfo,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    PartitionRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError, NotFoundError
from tests.cli.test_cli_storage import main_in_thread

TOPIC_ID = uuid.UUID("194feb45-76c5-1851-a926-52a35d8a71da")


def _partition(index: int, replicas: tuple[int, ...] = (), adding: tuple[int, ...] = ()) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC_ID,
        replicas=replicas,
        isr=(),
        removing_replicas=(),
        adding_replicas=adding,
        leader=-1,
        leader_epoch=index,
    )


RECORDS: list[MetadataRecord] = [
    RegisterBrokerRecord(
        broker_id=7,
        incarnation_id=uuid.UUID(int=9),
        broker_epoch=0,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="agent-7", port=9092, security_protocol=0),),
        features=(),
        rack="a",
    ),
    UnfenceBrokerRecord(broker_id=7, broker_epoch=0),
    TopicRecord(topic_name="orders", topic_id=TOPIC_ID, initial_partition_count=2, undeleted_partition_count=2),
    _partition(0),
    _partition(1, (7, 8), (8,)),
    ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000"),
    ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5"),
    FeatureLevelRecord(name="metadata.format", min_feature_level=1, max_feature_level=2),
    QuotaRecord(entity=(EntityData(entity_type="user", entity_name=None),), key="rate", value=2.5, remove=False),
    AccessControlRecord(
        resource_type=2,
        resource_name="orders",
        pattern_type=3,
        principal="User:anna",
        host="*",
        operation=3,
        permission_type=3,
    ),
    UserScramCredentialRecord(
        user_name="anna",
        credential_infos=(CredentialInfo(mechanism=1, salt=b"salt", salted_password=b"secret", iterations=4096),),
    ),
    DelegationTokenRecord(
        owner="anna", renewers=(), issue_timestamp=1, max_timestamp=2, expiration_timestamp=3, token_id="t-1"
    ),
]
IMAGE = apply(MetadataImage(), [encode_record(record) for record in RECORDS])


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def shell(said: list[str]) -> Shell:
    return Shell(tree(IMAGE), said.append)


def _cat(path: str) -> object:
    node = find(tree(IMAGE), path)
    assert isinstance(node, str), path
    return json.loads(node)


@pytest.mark.requirement("C11.4")
def test_every_kind_of_metadata_has_its_place() -> None:
    assert _cat("/topics/orders/1/data") == {
        "partitionId": 1,
        "leaderEpoch": 1,
        "replicas": [7, 8],
        "addingReplicas": [8],
        "removingReplicas": [],
    }
    assert find(tree(IMAGE), "/topics/orders/id") == "GU_rRXbFGFGpJlKjXYpx2g"
    assert find(tree(IMAGE), "/topicIds/GU_rRXbFGFGpJlKjXYpx2g") == "orders"
    assert find(tree(IMAGE), "/brokers/7/isFenced") == "false"
    registration = _cat("/brokers/7/registration")
    assert isinstance(registration, dict)
    assert registration["endPoints"] == [{"name": "PLAINTEXT", "host": "agent-7", "port": 9092, "security_protocol": 0}]
    assert find(tree(IMAGE), "/configs/topics/orders/retention.ms") == "1000"
    assert find(tree(IMAGE), "/configs/brokers/<default>/log.retention.ms") == "5"
    assert _cat("/features/metadata.format") == {"min_level": 1, "max_level": 2}
    assert find(tree(IMAGE), "/clientQuotas/user=<default>/rate") == "2.5"
    acl, token = _cat("/acls/0"), _cat("/delegationTokens/t-1")
    assert isinstance(acl, dict)
    assert isinstance(token, dict)
    assert (acl["principal"], token["owner"]) == ("User:anna", "anna")
    assert find(tree(IMAGE), "/local/offset") == str(len(RECORDS))


@pytest.mark.requirement("C11.4")
def test_secrets_are_not_shown() -> None:
    root = tree(IMAGE)
    whole = "\n".join(node for path in walk("/", root) if isinstance(node := find(root, path), str))
    assert _cat("/scram/anna/SCRAM-SHA-256") == {
        "iterations": 4096,
        "salt": "[redacted]",
        "saltedPassword": "[redacted]",
    }
    assert text(b"secret") not in whole


def test_a_large_topic_costs_nothing_until_it_is_opened() -> None:
    root = tree(IMAGE)
    topics = root.children["topics"]
    assert not isinstance(topics, str)
    assert "children" not in topics.__dict__


@pytest.mark.requirement("C11.4")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ls /topics", ["orders"]),
        ("ls /topics/orders", ["data", "id", "name", "0", "1"]),
        ("ls /topics/orders/name", ["/topics/orders/name"]),
        ("cat /topics/orders/name /brokers/7/isFenced", ["orders", "false"]),
        ("cat /topics/*/name", ["orders"]),
        ("find /topics/orders/1", ["/topics/orders/1", "/topics/orders/1/data"]),
        ("pwd", ["/"]),
        ("", []),
    ],
)
def test_commands(line: str, expected: list[str], shell: Shell, said: list[str]) -> None:
    shell.run(line)
    assert said == expected


@pytest.mark.requirement("C11.4")
def test_cd_moves_and_relative_paths_follow(shell: Shell, said: list[str]) -> None:
    for line in (
        "cd topics/orders",
        "pwd",
        "cat name",
        "cd ../..",
        "pwd",
        "cd brokers",
        "cd",
        "pwd",
        "cd ../../..",
        "pwd",
    ):
        shell.run(line)
    assert said == ["/topics/orders", "orders", "/", "/", "/"]


@pytest.mark.requirement("C11.4")
def test_help_man_history_and_exit(shell: Shell, said: list[str]) -> None:
    shell.run("help")
    assert all(f"  {name} " in said[0] for name in ["cat", "cd", "exit", "find", "help", "history", "ls", "man", "pwd"])
    shell.run("man cat")
    assert said[1].startswith("usage: cat FILE")
    shell.run("help ls")
    shell.run("man ls")
    assert said[2] == said[3] == "usage: ls [PATH...]\n\nList metadata nodes."
    shell.run("history 2")
    assert said[4:] == ["    4  man ls", "    5  history 2"]
    with pytest.raises(LeaveShell):
        shell.run("exit")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("rm /", InvalidError),
        ("cat", InvalidError),
        ("cat /topics", InvalidError),
        ("cat /nothing", NotFoundError),
        ("ls /topics/nothing/*", NotFoundError),
        ("cd /topics/orders/name", InvalidError),
        ("cd a b", InvalidError),
        ("man", InvalidError),
        ("help rm", InvalidError),
        ("history x", InvalidError),
        ('cat "', InvalidError),
    ],
)
def test_what_cannot_be_done_is_said(line: str, error: type[Exception], shell: Shell) -> None:
    with pytest.raises(error):
        shell.run(line)


@pytest.mark.requirement("C11.4")
@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "h", ["help ", "history "]),
        ("ls ", "/to", ["/topicIds/", "/topics/"]),
        ("cat ", "/topics/orders/n", ["/topics/orders/name "]),
        ("ls ", "/topics/nothing/x", []),
        ("man ", "p", ["pwd"]),
    ],
)
def test_tab_completes_commands_and_paths(before: str, word: str, expected: list[str], shell: Shell) -> None:
    assert shell.completions(before, word) == expected


@pytest.mark.requirement("C11.4")
async def test_one_shot_commands_on_a_metastore(
    metastore: PostgresMetastore, metastore_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = await metastore.cluster.metadata_head()
    assert await metastore.topics.create_topics(head, [NewTopic("orders", TOPIC_ID, 1, {})])
    for words in (["-c", "ls /topics"], ["ls", "/topics"], ["ls /topics"]):
        assert main_in_thread(["shell", "--metastore-url", metastore_url, *words]) == 0
        assert capsys.readouterr().out.splitlines() == ["orders"]
    assert main_in_thread(["shell", "--metastore-url", metastore_url, "cat", "/nothing"]) == 1
    assert "no such node: /nothing" in capsys.readouterr().err


@pytest.mark.requirement("C11.4")
async def test_lines_from_standard_input_until_exit(metastore: PostgresMetastore, metastore_url: str) -> None:
    def converse(lines: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace.cli.main", "shell", "--metastore-url", metastore_url]
        return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, check=False)

    done = converse("cd /local\npwd\nrm x\nexit\npwd\n")
    assert done.returncode == 0
    assert done.stdout.count("/local") == 1
    assert "no such command: rm" in done.stderr


@pytest.mark.requirement("C11.4")
async def test_a_snapshot_file_shows_the_same_tree(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = await metastore.cluster.metadata_head()
    assert await metastore.topics.create_topics(head, [NewTopic("orders", TOPIC_ID, 3, {"retention.ms": "7"})])
    file = str(tmp_path / "metadata.snapshot")
    assert main_in_thread(["shell", "--metastore-url", metastore_url, "--save-snapshot", file]) == 0
    shown = []
    capsys.readouterr()
    for source in (["--metastore-url", metastore_url], ["--snapshot", file]):
        assert main_in_thread(["shell", *source, "find", "/"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert main_in_thread(["shell", "--snapshot", file, "--save-snapshot", str(tmp_path)]) == 1
    assert f"cannot write: {tmp_path}: Is a directory" in capsys.readouterr().err
    assert "/configs/topics/orders/retention.ms" in shown[0]
    assert main_in_thread(["dump-log", "--cluster-metadata-decoder", "--files", file]) == 0
    assert '"type":"TOPIC_RECORD"' in capsys.readouterr().out


def test_a_source_that_is_missing_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_METASTORE_URL", raising=False)
    assert main(["shell", "ls"]) == 1
    assert "--snapshot" in capsys.readouterr().err
    assert main(["shell", "--snapshot", "/nowhere/at-all", "ls"]) == 1
    assert "cannot read: /nowhere/at-all" in capsys.readouterr().err
