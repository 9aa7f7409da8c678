"""The least rights of `headrace cluster plan`, `apply` and `export`: with real users, the rights that CLUSTER_FILES.md
names suffice, and without each of them the command is refused and changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.agent_process import AgentUnderTest, format_storage
from tests.faults.shared_cluster import free_ports

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "CLUSTER_FILES.md"
READS = ("cluster Describe", "cluster DescribeConfigs", "topic Describe", "topic DescribeConfigs")
CHANGES = ("cluster Alter", "cluster AlterConfigs", "topic Create", "topic Alter", "topic AlterConfigs", "topic Delete")
"""They imply the rights to read."""
DESCRIPTION = """\
topics:
  - {{name: team.old, partitions: 2, configs: {{retention.ms: 60000}}}}
  - {{name: team.new, partitions: 1, configs: {{retention.ms: 60000}}}}
users:
  - {{name: billing, password: "${{file:{secret}}}"}}
acls:
  - {{principal: "User:billing", resource: {{type: topic, name: team.old}}, operations: [Read]}}
quotas:
  - {{user: billing, limits: {{producer_byte_rate: 1048576}}}}
clusterConfigs:
  num.partitions: 3
"""
PASSWORD = "open sesame"


class Secured:
    """An agent with ACLs: users log in at `clients`, a client of `admin` may do everything."""

    def __init__(self, agent: AgentUnderTest, admin: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._clients, self._admin, self._folder, self._capsys = agent.kafka, admin, folder, capsys
        self._users = 0
        (folder / "password").write_text(PASSWORD)
        (folder / "cluster.yaml").write_text(DESCRIPTION.format(secret=folder / "password"))

    def as_admin(self, *words: str) -> str:
        status, out, err = self._run(*words, "-b", self._admin)
        assert status == 0, err
        return out

    def user_with(self, rights: Sequence[str]) -> list[str]:
        """The flags of a new user with these rights on the cluster and on topics that begin with `team.`."""
        self._users += 1
        name = f"user-{self._users}"
        self.as_admin("users", "create", name, "--password-file", str(self._folder / "password"))
        for right in rights:
            resource, operation = right.split()
            on = ["--cluster"] if resource == "cluster" else ["--topic", "team.", "--resource-pattern-type", "prefix"]
            self.as_admin("acls", "create", *on, "--operation", operation, "--allow-principal", f"User:{name}")
        file = self._folder / f"{name}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.username={name}\nsasl.password={PASSWORD}\n"
        )
        return ["-b", self._clients, "--command-config", str(file)]

    def command(self, action: str, user: Sequence[str]) -> tuple[int, str, str]:
        """Run it with everything that it can do."""
        if action == "export":
            return self._run("cluster", "export", *user)
        words = ["cluster", action, "-f", str(self._folder / "cluster.yaml"), "--prune", "topics:team.", *user]
        return self._run(*words, "--allow-data-loss", *(["--yes"] if action == "apply" else []))

    def state(self) -> dict[str, list[object]]:
        """What the cluster is, without the users of the test and their ACLs."""
        shown = json.loads(self.as_admin("cluster", "export", "--json"))
        return {kind: [each for each in found if "user-" not in str(each)] for kind, found in shown.items()} | {
            kind: [] for kind in ("users", "acls") if kind not in shown
        }

    def _run(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main([*words])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err


@pytest.fixture
def secured(metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Secured]:
    clients, admin = free_ports(2)
    settings: dict[str, object] = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path}/bucket"}
    format_storage(settings)
    settings |= {
        "process.roles": "broker,controller",
        "listeners": f"CLIENT://127.0.0.1:{clients},ADMIN://127.0.0.1:{admin}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.level": "error",
    }
    with AgentUnderTest(settings) as agent:
        found = Secured(agent, f"127.0.0.1:{admin}", tmp_path, capsys)
        found.as_admin("topics", "create", "team.old", "--partitions", "1")
        found.as_admin("topics", "create", "team.gone", "--partitions", "1")
        yield found


def test_the_named_rights_suffice_and_each_is_needed(secured: Secured) -> None:
    before = secured.state()
    for action, rights in (("plan", READS), ("export", READS), ("apply", CHANGES)):
        for missing in rights:
            user = secured.user_with([right for right in rights if right != missing])
            status, out, err = secured.command(action, user)
            if (action, missing) == ("export", "topic Describe"):  # a hidden topic has no name to refuse
                assert (status, "team.old" in out) == (0, False), err
                continue
            assert status == 1, f"{action} without {missing}: {out}{err}"
            assert "authorization_failed" in err, f"{action} without {missing}: {err}"
            assert secured.state() == before, f"{action} without {missing}"
    reader = secured.user_with(READS)
    assert secured.command("plan", reader)[0] == 2
    assert secured.command("export", reader)[0] == 0
    assert secured.state() == before
    writer = secured.user_with(CHANGES)
    status, out, err = secured.command("apply", writer)
    assert status == 0, err
    assert "team.gone" in out
    assert "no difference" in secured.command("apply", writer)[1]


@pytest.mark.parametrize("rights", [READS, CHANGES], ids=["reads", "changes"])
def test_the_page_names_them(rights: Sequence[str]) -> None:
    (row,) = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `plan`" if rights is READS else "| `apply`")
    ]
    named = {"cluster": set[str](), "topic": set[str]()}
    for cell, kind in zip(row.split("|")[2:4], named, strict=True):
        named[kind] = {word.replace("_", "").lower() for word in re.findall(r"[A-Z_]{4,}", cell)}
    for kind, found in named.items():
        assert found == {right.split()[1].lower() for right in rights if right.startswith(kind)}
