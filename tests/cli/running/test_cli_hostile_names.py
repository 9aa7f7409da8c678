"""Names that clients choose, in what every command writes: they are shown, and do nothing to a terminal.

A group, a member, a transactional id, a user, an ACL, a quota and a record are called as an attacker would call them.
Every command runs as on a terminal, or has a reason why it shows no name of others; a new command needs a line here.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
import yaml
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.cli.commands import make_parser
from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import SECONDS_MAX
from tests.kafka_clients import KafkaClients

TOPIC = "named"
BAD = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;Y3Vy\x07\x9b2J\r\u202efdp\u2028[/x][link=https://a.example]"
ACTS = ("\x1b]0;", "\x1b[2J", "\x1b]52;", "\x1b]8;", "\x9b", "\x07", "\r\u202e", "\u202e", "\u2028")
"""What must not be written as it is. Rich's colours, which begin with ESC, too, are no part of it."""
GROUP, MEMBERS, CLIENT, TRANSACTION = f"grp{BAD}", f"members{BAD}", f"cli{BAD}", f"tx{BAD}"
USER, LIMITED, KEY = f"usr{BAD}", f"lim{BAD}", f"key{BAD}"
OF_SERVER = ("--metastore-url", "{metastore}", "--bucket", "{bucket}")
OF_AGENTS = ("--agent-http", "{agents}")
RUNS: dict[str, tuple[tuple[str, ...], bool]] = {
    "topics list": ((), False),
    "topics describe": ((TOPIC,), False),
    "topics create": ((f"t{BAD}",), True),
    "topics alter": ((f"t{BAD}", "--partitions", "2"), True),
    "topics delete": ((f"t{BAD}", "--yes"), True),
    "topics restore": ((f"t{BAD}", *OF_SERVER), True),
    "groups list": ((), True),
    "groups describe": ((MEMBERS, "--members"), True),
    "groups reset-offsets": ((GROUP, "--to-earliest"), False),
    "groups delete-offsets": ((MEMBERS, "--topic", TOPIC, "--yes"), True),
    "groups delete": ((f"no{BAD}", "--yes"), True),
    "configs describe": (("--group", GROUP, "--all"), False),
    "configs set": (("--group", GROUP, "consumer.session.timeout.ms=nonsense"), False),
    "configs delete": (("--topic", f"t{BAD}", "retention.ms"), True),
    "users list": ((), True),
    "users describe": ((USER,), True),
    "users delete": ((f"no{BAD}", "--yes"), True),
    "acls list": ((), True),
    "acls create": (("--allow-principal", f"User:acl{BAD}", "--operation", "read", "--topic", TOPIC), True),
    "acls delete": (("--principal", f"User:acl{BAD}", "--yes"), True),
    "quotas list": ((), True),
    "quotas describe": (("--client-id", LIMITED), True),
    "quotas alter": (("--client-id", LIMITED, "--set", "producer_byte_rate=1000"), False),
    "quotas delete": (("--client-id", f"no{BAD}", "--yes"), False),
    "transactions list": ((), True),
    "transactions describe": ((TRANSACTION,), True),
    "transactions describe-producers": (("--topic", TOPIC, "--partition", "0"), False),
    "transactions abort": (("--transactional-id", TRANSACTION), False),
    "transactions find-hanging": ((), False),
    "records produce": ((f"t{BAD}",), True),
    "records consume": ((TOPIC, "--from", "earliest", "--format", "key"), True),
    "records delete": ((f"t{BAD}", "--all", "--yes"), True),
    "records offsets": ((f"t{BAD}",), True),
    "cluster plan": (("-f", "{described}"), True),
    "cluster apply": (("-f", "{described}"), True),
    "cluster export": (("--from-kafka", "{bootstrap}"), True),
    "cluster unregister": (("-i", "77"), False),
    "features describe": ((), False),
    "features upgrade": (("--feature", f"f{BAD}=1"), True),
    "top": (("--once", "--seconds", "0.1", *OF_AGENTS), True),
    "clients": (("--seconds", "0.1", *OF_AGENTS), True),
    "segments list": (("--topic", f"t{BAD}", *OF_SERVER), True),
    "segments show": (("--topic", f"t{BAD}", "--partition", "0", "--offset", "0", *OF_SERVER), True),
    "segments history": (("--topic", f"t{BAD}", *OF_SERVER), True),
    "tables list": (OF_SERVER, False),
    "tables create": ((f"t{BAD}", *OF_SERVER), False),
    "tables show": ((f"t{BAD}", *OF_SERVER), False),
    "tables alter": ((f"t{BAD}", "--retention-ms", "1", *OF_SERVER), False),
    "tables delete-rows": ((f"t{BAD}", "--where", "x = 1", "--yes", *OF_SERVER), False),
    "tables pause": ((f"t{BAD}", *OF_SERVER), False),
    "tables resume": ((f"t{BAD}", *OF_SERVER), False),
    "tables drop": ((f"t{BAD}", "--yes", *OF_SERVER), False),
    "tables detach": ((f"t{BAD}", *OF_SERVER), False),
    "damage list": (OF_SERVER, False),
    "partitions check": ((f"t{BAD}", *OF_SERVER), True),
    "damage repair": ((f"t{BAD}", "--partition", "0", "--offset", "0", "--yes", *OF_SERVER), False),
    "damage skip": ((f"t{BAD}", "--partition", "0", "--offset", "0", "--yes", *OF_SERVER), False),
    "link list": ((), False),
    "link create": ((f"l{BAD}", "--from", "127.0.0.1:1", "--topics", f"t{BAD}"), True),
    **{
        f"link {word}": ((f"l{BAD}",), True)
        for word in ("show", "describe", "verify", "groups", "pause", "resume", "promote")
    },
    "link alter": ((f"l{BAD}", "--topics", f"t{BAD}"), True),
    "link drop": ((f"l{BAD}", "--yes"), True),
    "link delete": ((f"l{BAD}", "--yes"), True),
    "export": (("--topic", f"t{BAD}", "--to", "{bucket}", *OF_SERVER), True),
    "dump-log": (OF_SERVER[:2], False),
    "shell": (("--metastore-url", "{metastore}", "ls", "/"), False),
    "audit": (OF_SERVER, False),
    "doctor": (OF_SERVER, False),
    "storage info": (OF_SERVER, False),
}
"""Command, words, and whether it shows one of the names."""
NO_NAMES = {
    "agent compactor dev": "serve; what they print is ready lines, their logs are another test",
    "storage format": "prints ids", "storage random-uuid": "prints ids", "storage adopt-bucket": "prints addresses",
    "storage rotate-zone-secret": "prints node ids", "storage seal-secrets": "prints counts",
    "storage grow-commit-shards": "prints numbers", "migrate": "prints migrations", "planners": "prints its own words",
    "backup": "prints what the operator recorded",
    "postgres setup": "prints its own words", "postgres standby": "prints its own words",
    "users create": "asks for a password", "users alter": "asks for a password",
    "acls describe": "another name of acls list", "quotas create": "another name of quotas alter",
    "features list": "another name of features describe", "features alter": "as features upgrade",
    "features downgrade": "as features upgrade", "features disable": "as features upgrade",
    "features delete": "as features upgrade",
    "cluster cluster-id": "prints an id", "cluster schema": "prints the schema",
    "console": "serves; tests/cli/console has its pages", "segments migrate": "prints counts",
    "bench": "measures its own topics", "cost": "computes", "completion": "prints a script",
    "version": "prints a number",
}  # fmt: skip


@pytest.fixture(scope="module")
def named(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster with the names; the words that commands get."""
    clients = KafkaClients(server.bootstrap)
    clients.create(TOPIC)
    servers = clients.settings
    producer = confluent_kafka.Producer(servers)
    producer.produce(TOPIC, b"value", key=KEY.encode(), headers=[(f"h{BAD}", BAD.encode())])
    assert producer.flush(SECONDS_MAX) == 0
    for group in (GROUP, MEMBERS):
        clients.commit(group, confluent_kafka.TopicPartition(TOPIC, 0, 1))
    member = confluent_kafka.Consumer(servers | {"group.id": MEMBERS, "client.id": CLIENT, "group.instance.id": CLIENT})
    joined: list[object] = []
    member.subscribe([TOPIC], on_assign=lambda _, assigned: joined.append(assigned))
    while not joined:
        member.poll(0.1)
    transactional = confluent_kafka.Producer(servers | {"transactional.id": TRANSACTION})
    transactional.init_transactions(SECONDS_MAX)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(USER, info, b"a password")
    admin = AdminClient(servers)  # a variable: without one, it ends before its answer
    admin.alter_user_scram_credentials([change])[USER].result(SECONDS_MAX)
    for words in (
        ("acls", "create", "--allow-principal", f"User:usr{BAD}", "--operation", "read", "--topic", TOPIC),
        ("quotas", "alter", "--client-id", LIMITED, "--set", "producer_byte_rate=1000000"),
    ):
        assert main([*words, "-b", server.bootstrap]) == 0
    described = tmp_path_factory.mktemp("described") / "cluster.yaml"
    quota = {"clientId": f"new{BAD}", "limits": {"producer_byte_rate": 1}}
    described.write_text(yaml.safe_dump({"quotas": [quota]}), encoding="utf-8")
    agents = ",".join(f"http://{agent.http}" for agent in server.agents)
    yield {
        "bootstrap": server.bootstrap,
        "metastore": server.metastore_url,
        "bucket": server.bucket,
        "described": str(described),
        "agents": agents,
    }
    member.close()
    transactional.flush(0)


@pytest.mark.parametrize("command", RUNS)
def test_a_command_writes_names_that_do_nothing(
    command: str,
    named: dict[str, str],
    server: DevServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words, shows = RUNS[command]
    given = [*command.split(), *(word.format(**named) if word.startswith("{") else word for word in words)]
    if "--metastore-url" not in words and command != "clients":
        given += ["-b", server.bootstrap]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "4000")
    monkeypatch.setattr("sys.stdin", open(tmp_path / "in", "w+"))  # noqa: SIM115
    with contextlib.suppress(SystemExit):  # an argument that the parser refuses
        main(given)
    output = capsys.readouterr()
    written = output.out + output.err
    assert written
    assert [acting for acting in ACTS if acting in written] == []
    assert not shows or "owned" in written, "the name is shown"


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for name, each in action.choices.items():
            yield from _commands(each, (*words, name))
    if not inner:
        yield " ".join(words)


def test_every_command_is_run_or_has_a_reason() -> None:
    known = set(RUNS) | NO_NAMES.keys() | {"agent", "compactor", "dev"}
    assert set(_commands(make_parser((), complete=True))) == known - {"agent compactor dev"}


def test_an_exported_file_has_the_same_names(
    named: dict[str, str], server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["cluster", "export", "-b", server.bootstrap]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert LIMITED in {quota.get("clientId") for quota in found["quotas"]}
    assert f"User:usr{BAD}" in {acl["principal"] for acl in found["acls"]}
