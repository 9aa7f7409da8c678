"""What `headrace cluster plan`, `apply` and `export` do, on any Kafka cluster.

Place: called for Headrace (test_commands.py) and for Apache Kafka (tests/compat/test_cli_on_kafka.py).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.described import execution
from headrace.cli.main import main
from headrace.storage.errors import UnavailableError

ALL_KINDS = ("topics", "acls", "users", "quotas")
CLUSTER = """\
topics:
  - name: team.orders
    partitions: 3
    configs: {retention.ms: 86400000, cleanup.policy: [compact, delete]}
  - name: team.bills
users:
  - {name: ann, password: "${file:secrets/ann}", iterations: 8192}
  - {name: bob, password: "${file:secrets/bob}", mechanism: SCRAM-SHA-256}
acls:
  - principal: User:ann
    resource: {type: topic, name: team., patternType: prefix}
    operations: [Read, Describe]
  - {principal: User:ann, resource: {type: group, name: "*"}, operations: [Read]}
  - {principal: User:bob, resource: {type: cluster}, operations: [IdempotentWrite], type: deny, host: 10.0.0.1}
quotas:
  - {user: ann, limits: {producer_byte_rate: 1048576, request_percentage: 12.5}}
  - {user: ann, defaults: [clientId], limits: {consumer_byte_rate: 1000}}
  - {ip: 10.0.0.1, limits: {connection_creation_rate: 5}}
"""


MESSAGE_BYTES = 1048588
"""The default of message.max.bytes."""


class Files:
    """A directory that describes a cluster, and commands with it."""

    def __init__(self, folder: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._bootstrap, self._capsys = folder, bootstrap, capsys
        (folder / "secrets").mkdir(parents=True)
        for name in ("ann", "bob"):
            (folder / "secrets" / name).write_text(f"password of {name}\n")

    def write(self, text: str, name: str = "cluster.yaml") -> None:
        (self.folder / name).write_text(text)

    def plan(self, *words: str, status: int = 0) -> Any:
        return self.run("plan", "-f", str(self.folder), *words, status=status)

    def moved(self, *words: str) -> tuple[str, str]:
        """Return what `export --from-kafka` writes of this cluster, as a file and as comments on it."""
        self._capsys.readouterr()
        assert main(["cluster", "export", "--from-kafka", self._bootstrap, *words]) == 0
        shown = self._capsys.readouterr()
        return shown.out, shown.err

    def apply(self, *words: str, status: int = 0) -> Any:
        return self.run("apply", "-f", str(self.folder), *words, status=status)

    def run(self, command: str, *words: str, status: int = 0) -> Any:
        """The output of --json; the message of a failure."""
        self._capsys.readouterr()
        assert main(["cluster", command, *words, "-b", self._bootstrap, "--json"]) == status
        shown = self._capsys.readouterr()
        return shown.err if status == 1 else json.loads(shown.out)


def check_apply(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies a description, also interrupted after each step; changes and prunes it."""
    files.write(CLUSTER)
    steps = files.plan(status=2)
    assert {step["action"] for step in steps} == {"create"}
    assert steps == sorted(steps, key=lambda step: ["quotas", "acls", "users", "topics"].index(step["kind"]))
    orders = next(step for step in steps if step["name"] == "topic team.orders")
    assert (Path(orders["file"]).name, orders["line"]) == ("cluster.yaml", 2)
    _interrupted(files, monkeypatch, after=3)
    _interrupted(files, monkeypatch, after=0, answer_is_lost=True)
    _interrupted(files, monkeypatch, after=5, answer_is_lost=True)
    files.apply()
    assert files.apply() == []
    assert files.plan() == []
    changed = CLUSTER.replace("partitions: 3", "partitions: 4").replace(
        "request_percentage: 12.5", "request_percentage: 9"
    )
    files.write(changed.replace("86400000", "1000"))
    refused = files.apply(status=1)
    assert "topic team.orders: may remove records: allow it with --allow-data-loss" in refused
    assert len(files.plan(status=2)) == 3, "nothing was changed"
    assert "repeat with --yes" in files.apply("--allow-data-loss", status=1)
    files.apply("--allow-data-loss", "--yes")
    files.write(
        "topics: [{name: team.orders, partitions: 4, configs: {retention.ms: 1000, cleanup.policy: [compact, delete]}}]"
    )
    assert files.plan() == [], "what is not described is left alone"
    gone = files.plan("--prune", "topics:team.", "--prune", "users:bob", "--prune", "acls:User:bob", status=2)
    assert {step["name"].split()[0]: step["action"] for step in gone} == dict.fromkeys(
        ("topic", "user", "acl"), "delete"
    )
    assert len(gone) == 3


def check_export(source: Files, empty: Files) -> None:
    """A cluster that is exported and applied to an empty one gives the same export."""
    source.write(CLUSTER)
    source.apply()
    only = [word for kind in ALL_KINDS for word in ("--only", kind)]
    exported = source.run("export", *only)
    assert {kind: len(exported[kind]) for kind in ALL_KINDS} == {"topics": 2, "users": 2, "acls": 3, "quotas": 3}
    empty.write(json.dumps(exported), "exported.json")
    empty.apply()
    assert empty.run("export", *only) == exported


def check_emptied(files: Files) -> None:
    """Prunes everything; then the export of a pruned cluster is empty."""
    files.write("topics: []")
    prune = [word for kind in ALL_KINDS for word in ("--prune", kind)]
    assert "deletes all its records" in files.apply(*prune, status=1)
    files.apply(*prune, "--allow-data-loss", "--yes")
    (files.folder / "cluster.yaml").unlink()


def check_impossible(files: Files, *, refused_by_cluster: str) -> None:
    """All that a cluster would refuse is named at once with its line, and nothing is changed."""
    files.write(
        "topics:\n"
        "  - {name: imp.a, configs: {no.such.config: 1}}\n"
        "  - {name: imp.b, configs: {retention.ms: soon}}\n"
        "  - {name: imp.c}\n"
        "users:\n"
        "  - {name: imp, password: '${file:secrets/missing}'}\n"
        "clusterConfigs: {no.such.setting: 5}\n"
    )
    refused = files.apply(status=1)
    for line, name in ((2, "topic imp.a"), (3, "topic imp.b"), (6, "user imp SCRAM-SHA-512")):
        assert f"cluster.yaml:{line}: {name}: " in refused, refused
    assert refused_by_cluster in refused
    exported = files.run("export", "--only", "topics")
    assert "imp.c" not in {topic["name"] for topic in exported.get("topics", [])}
    (files.folder / "cluster.yaml").unlink()


def check_named_configs(files: Files, empty: Files) -> None:
    """Configs of a group and of a subscription are set, exported, applied elsewhere and pruned."""
    groups = "{name: g, configs: {consumer.session.timeout.ms: 50000, share.auto.offset.reset: earliest}}"
    metrics = "{name: m, configs: {interval.ms: 60000, match: [client_id=a.*, client_software_name=b]}}"
    files.write(f"groupConfigs: [{groups}]\nclientMetrics: [{metrics}]")
    assert {step["name"] for step in files.apply()} == {"configs of group g", "client metrics m"}
    assert files.plan() == []
    only = ("--only", "groupConfigs", "--only", "clientMetrics")
    exported = files.run("export", *only)
    (group,), (subscription,) = exported["groupConfigs"], exported["clientMetrics"]
    assert group["configs"] == {"consumer.session.timeout.ms": 50000, "share.auto.offset.reset": "earliest"}
    assert subscription["configs"]["match"] == "client_id=a.*,client_software_name=b"
    empty.write(json.dumps(exported), "exported.json")
    empty.apply()
    assert empty.run("export", *only) == exported
    files.write(f"groupConfigs: [{groups.replace(', share.auto.offset.reset: earliest', '')}]")
    (step,) = files.apply()
    assert step["changes"] == [{"field": "share.auto.offset.reset", "before": "earliest", "after": None}]
    files.write("topics: []")
    files.apply("--prune", "groupConfigs:g", "--prune", "clientMetrics", "--yes")
    assert files.run("export", *only) == {}
    for each in (files.folder / "cluster.yaml", empty.folder / "exported.json"):
        each.unlink()


def check_export_from_another(source: Files, target: Files) -> str:
    """What --from-kafka writes of a cluster is refused until its users have passwords, and can be applied then.

    The comments on stderr are returned; those of the file are the same.
    """
    target.write("topics: []")
    target.apply(*(word for kind in ALL_KINDS for word in ("--prune", kind)), "--allow-data-loss", "--yes")
    (target.folder / "cluster.yaml").unlink()
    source.write(CLUSTER)
    source.apply()
    text, head = source.moved("--topics", "team.o.*")
    assert [line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")] == head.splitlines()
    shutil.rmtree(target.folder / "secrets")
    target.write(text, "moved.yaml")
    for user in ("ann", "bob"):
        assert f"user {user} " in target.apply("--dry-run", status=1)
    (target.folder / "secrets").mkdir()
    for user in ("ann", "bob"):
        (target.folder / "secrets" / user).write_text(f"password of {user}\n")
    steps = target.apply("--dry-run")
    assert [step["name"] for step in steps if step["kind"] == "topics"] == ["topic team.orders"]
    assert {step["kind"] for step in steps} >= {"topics", "users", "acls", "quotas"}
    assert target.plan(status=2) == steps, "nothing was changed"
    target.apply()
    assert target.plan() == []
    without_topics, _ = source.moved()
    assert "topics:" not in without_topics
    (target.folder / "moved.yaml").unlink()
    return head


def _interrupted(files: Files, monkeypatch: pytest.MonkeyPatch, after: int, *, answer_is_lost: bool = False) -> None:
    """Apply until the connection is lost after some steps; with `answer_is_lost`, the next one is done, too."""
    done = 0
    original = execution._run

    def run(*arguments: Any) -> None:
        nonlocal done
        if done == after and not answer_is_lost:
            raise UnavailableError("cut off")
        original(*arguments)
        if done == after:
            raise UnavailableError("cut off")
        done += 1

    with monkeypatch.context() as patched:
        patched.setattr(execution, "_run", run)
        assert f"{after} of " in files.apply(status=1)
    assert done == after


def check_cluster_configs(files: Files, empty: Files) -> None:
    """A setting of the cluster is set, exported, and found to be there; also one that has its default value."""
    files.write(f"clusterConfigs: {{log.retention.ms: 7000, message.max.bytes: {MESSAGE_BYTES}}}", "configs.yaml")
    risky = files.plan(status=2)
    assert [(step["name"], step["risk"]) for step in risky if step["risk"]] == [
        ("cluster config log.retention.ms", "--allow-data-loss")
    ]
    files.apply("--allow-data-loss", "--yes")
    assert files.plan() == []
    exported = files.run("export", "--only", "clusterConfigs")
    assert exported["clusterConfigs"]["log.retention.ms"] == 7000
    empty.write(json.dumps(exported), "exported.json")
    empty.apply("--allow-data-loss", "--yes")
    assert empty.run("export", "--only", "clusterConfigs") == exported
    files.write("clusterConfigs: {log.retention.ms: -1}", "configs.yaml")
    files.apply()
    (files.folder / "configs.yaml").unlink()
