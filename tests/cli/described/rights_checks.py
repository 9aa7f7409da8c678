"""The least rights of `headrace cluster plan`, `apply` and `export`: with real users, the rights that CLUSTER_FILES.md
names suffice, and without each of them the command is refused and changes nothing.

Place: called for Headrace (test_rights.py) and for Apache Kafka (tests/compat/test_cli_on_kafka.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.cli.command_lines import told

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
  message.max.bytes: 2000000
"""
PASSWORD = "open sesame"


class Secured:
    """A cluster with ACLs: users log in at `clients`, a client of `admin` may do everything. It has two topics."""

    def __init__(self, clients: str, admin: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._clients, self._admin, self._folder, self._capsys = clients, admin, folder, capsys
        self._users = 0
        (folder / "password").write_text(PASSWORD)
        (folder / "cluster.yaml").write_text(DESCRIPTION.format(secret=folder / "password"))
        for name in ("team.old", "team.gone"):
            self.as_admin("topics", "create", name, "--partitions", "1")
        told(lambda: self.as_admin("topics", "list"), lambda shown: "team.old" in shown and "team.gone" in shown)

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
        user = ["-b", self._clients, "--command-config", str(file)]
        told(lambda: self._run("topics", "list", *user)[0], lambda status: status == 0)
        told(lambda: self._count_acls(name), lambda count: count == len(rights))
        return user

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

    def _count_acls(self, name: str) -> int:
        """Return how many the broker knows: Kafka's learns of them after the answer."""
        return len(json.loads(self.as_admin("acls", "list", "--principal", f"User:{name}", "--json")))

    def _run(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main([*words])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err


def check_rights(secured: Secured) -> None:
    """The named rights suffice, and each is needed."""
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
    for action, expected in (("plan", 2), ("export", 0)):
        status, out, err = secured.command(action, reader)
        assert status == expected, f"{action}: {out}{err}"
    assert secured.state() == before
    writer = secured.user_with(CHANGES)
    status, out, err = secured.command("apply", writer)
    assert status == 0, err
    assert "team.gone" in out
    assert "no difference" in secured.command("apply", writer)[1]
