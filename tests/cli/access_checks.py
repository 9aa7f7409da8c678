"""What `headrace users`, `acls`, `quotas`, `features` and `transactions` do, on any Kafka cluster.

Place: called for Headrace (test_cli_access.py) and for Apache Kafka (tests/compat/test_cli_on_kafka.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.cli.command_lines import SECONDS_MAX, Run, told, type_in


def check_users(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user's life; passwords come from standard input and from a file."""
    file = tmp_path / "password"
    file.write_text("correct horse\n")
    type_in(monkeypatch, b"first password\n")
    made = run("users", "create", "ann", "--password-file", "-")
    assert made == {"user": "ann", "mechanism": "SCRAM-SHA-512", "outcome": "created"}
    told(lambda: run("users", "list"), lambda rows: "ann" in {row["user"] for row in rows})
    assert "`alter` sets another password" in run("users", "create", "ann", "--password-file", str(file), status=1)
    assert run("users", "create", "ann", "--if-not-exists")["outcome"] == "exists", "no password is needed"
    small = ("--mechanism", "SCRAM-SHA-256", "--password-file", str(file))
    assert "`create` adds it" in run("users", "alter", "ann", *small, status=1)
    run("users", "create", "ann", *small, "--iterations", "5000")
    both = told(lambda: run("users", "describe", "ann"), lambda rows: len(rows) == 2)
    assert [(row["mechanism"], row["iterations"]) for row in both] == [("SCRAM-SHA-256", 5000), ("SCRAM-SHA-512", 4096)]
    assert run("users", "alter", "ann", "--password-file", str(file), "--iterations", "8192")["outcome"] == "altered"
    told(lambda: run("users", "describe", "ann"), lambda rows: rows[1]["iterations"] == 8192)
    type_in(monkeypatch, b"")
    assert "set --password-file" in run("users", "alter", "ann", status=1)
    assert "empty password" in run("users", "alter", "ann", "--password-file", "-", status=1)
    assert "repeat with --yes" in run("users", "delete", "ann", status=1)
    run("users", "delete", "ann", "--mechanism", "SCRAM-SHA-256", "--yes")
    told(lambda: run("users", "list"), lambda rows: len([row for row in rows if row["user"] == "ann"]) == 1)
    run("users", "delete", "bob", "--yes", status=1)
    assert run("users", "delete", "ann", "--yes") == [{"user": "ann", "outcome": "deleted", "error": None}]
    told(lambda: run("users", "list"), lambda rows: "ann" not in {row["user"] for row in rows})
    assert "ann" in run("users", "describe", "ann", status=1)


def check_acls(run: Run) -> None:
    """Creates ACLs as Kafka's tool does, lists and deletes them by filters."""
    topic = ("--topic", "acl-orders")
    producer = run("acls", "create", "--allow-principal", "User:pam", "--producer", *topic)
    assert {row["operation"] for row in producer} == {"Write", "Describe", "Create"}
    run("acls", "create", "--allow-principal", "User:pam", "--consumer", *topic, "--group", "acl-g")
    deny = ("--deny-principal", "User:pam", "--deny-host", "10.0.0.9", "--operation", "read")
    run("acls", "create", *deny, "--topic", "acl-", "--resource-pattern-type", "prefixed")
    of_pam = told(lambda: run("acls", "list", "--principal", "User:pam"), lambda rows: len(rows) == 6)
    assert {
        "resource": "topic",
        "name": "acl-",
        "pattern": "prefix",
        "principal": "User:pam",
        "host": "10.0.0.9",
        "operation": "Read",
        "permission": "deny",
    } in of_pam
    assert len(run("acls", "list", *topic)) == 4
    assert len(run("acls", "list", *topic, "--resource-pattern-type", "match")) == 5
    assert [row["name"] for row in run("acls", "list", "--group", "acl-g")] == ["acl-g"]
    assert "which ACLs" in run("acls", "delete", status=1)
    assert "repeat with --yes" in run("acls", "delete", *topic, status=1)
    assert len(run("acls", "delete", *topic, "--operation", "Describe", "--yes")) == 1
    told(lambda: run("acls", "list", *topic), lambda rows: len(rows) == 3)
    rest = run("acls", "delete", "--principal", "User:pam", "--resource-pattern-type", "any", "--yes")
    assert len(rest) == 5
    told(lambda: run("acls", "list", "--principal", "User:pam"), lambda rows: rows == [])
    assert run("acls", "delete", *topic) == [], "nothing to confirm"
    for words, why in (
        (("--producer", *topic), "for whom"),
        (("--allow-principal", "User:x", "--consumer", *topic), "--group"),
        (("--allow-principal", "User:x"), "on what"),
        (("--deny-principal", "User:x", "--producer", *topic), "--allow-principal"),
    ):
        assert why in run("acls", "create", *words, status=1)


def check_quotas(run: Run) -> None:
    """Quotas of a user, of a user's client, of default entities and of an address."""
    user = ("--user", "qu")
    assert run("quotas", "describe", *user) == []
    rates = ("--set", "producer_byte_rate=1048576", "--set", "request_percentage=12.5")
    assert run("quotas", "alter", *user, *rates, "--validate-only")["outcome"] == "would be altered"
    assert run("quotas", "alter", *user, *rates)["outcome"] == "altered"
    run("quotas", "alter", *user, "--client-id-default", "--set", "consumer_byte_rate=5")
    run("quotas", "alter", "--ip", "10.1.2.3", "--set", "connection_creation_rate=7")
    found = told(lambda: run("quotas", "list"), lambda rows: len(rows) == 4)
    assert {(row["user"], row["client_id"], row["ip"], row["quota"], row["value"]) for row in found} == {
        ("qu", None, None, "producer_byte_rate", 1048576.0),
        ("qu", None, None, "request_percentage", 12.5),
        ("qu", "<default>", None, "consumer_byte_rate", 5.0),
        (None, None, "10.1.2.3", "connection_creation_rate", 7.0),
    }
    assert len(run("quotas", "describe", *user)) == 2, "those of the user alone"
    run("quotas", "alter", *user, "--delete-config", "request_percentage")
    told(lambda: run("quotas", "describe", *user), lambda rows: len(rows) == 1)
    assert run("quotas", "alter", *user, "--set", "no_such_rate=1", status=1)
    assert "of whom" in run("quotas", "alter", "--set", "producer_byte_rate=1", status=1)
    assert "not a number" in run("quotas", "alter", *user, "--set", "producer_byte_rate=x", status=1)
    for entity in (user, (*user, "--client-id-default"), ("--ip", "10.1.2.3")):
        assert run("quotas", "delete", *entity, "--yes")["outcome"] == "deleted"
    told(lambda: run("quotas", "list"), lambda rows: rows == [])
    assert "no quotas" in run("quotas", "delete", *user, "--yes", status=1)


def check_features(run: Run, feature: str) -> None:
    """Levels are shown; the one in use is set again without a request, and a level out of range is refused."""
    found = {row["feature"]: row for row in run("features", "describe")}
    row = found[feature]
    level = row["finalized_version_level"]
    assert row["supported_min_version"] <= level <= row["supported_max_version"]
    same = run("features", "upgrade", "--feature", f"{feature}={level}")
    assert same == [{"feature": feature, "level": level, "outcome": "unchanged"}]
    assert feature in run("features", "upgrade", "--feature", f"{feature}=3000", "--dry-run", status=1)
    assert "repeat with --yes" in run("features", "downgrade", "--feature", f"{feature}=1", status=1)
    assert "not a level" in run("features", "upgrade", "--feature", f"{feature}=high", status=1)


def check_transactions(run: Run, bootstrap: str) -> None:
    """An open transaction is listed, described and aborted, by its id and in a partition."""
    run("topics", "create", "tx", "--partitions", "2")
    told(lambda: run("topics", "list"), lambda rows: "tx" in {row["topic"] for row in rows})
    producer = _open_transaction(bootstrap, "admin-tx")
    ongoing = run("transactions", "list", "--state", "Ongoing")
    assert [row["transactional_id"] for row in ongoing] == ["admin-tx"]
    assert run("transactions", "list", "--transactional-id-pattern", "no.*") == []
    (described,) = run("transactions", "describe", "admin-tx")
    assert (described["state"], described["partitions"]) == ("Ongoing", ["tx:1"])
    assert described["start"].startswith("20")
    (remembered,) = _with_open_transaction(run("transactions", "describe-producers", "--topic", "tx"))
    assert (remembered["partition"], remembered["start_offset"]) == (1, 0)
    assert run("transactions", "find-hanging", "--max-transaction-timeout", "0") == [], "its coordinator will end it"
    assert "repeat with --yes" in run("transactions", "abort", "--transactional-id", "admin-tx", status=1)
    run("transactions", "abort", "--transactional-id", "admin-tx", "--yes")
    ended = told(lambda: run("transactions", "describe", "admin-tx")[0], lambda row: row["state"] != "Ongoing")
    assert ended["partitions"] == []
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(SECONDS_MAX)
    del producer
    told(
        lambda: run("transactions", "describe-producers", "--topic", "tx", "--partition", "1"),
        lambda rows: _with_open_transaction(rows) == [],
    )
    assert "does not exist" in run("transactions", "describe", "no-such-id", status=1)
    assert "does not exist" in run("transactions", "abort", "--transactional-id", "no-such-id", "--yes", status=1)
    again = _open_transaction(bootstrap, "admin-tx-2")
    (open_,) = _with_open_transaction(run("transactions", "describe-producers", "--topic", "tx"))
    where = ("--topic", "tx", "--partition", "1")
    assert "no open transaction" in run("transactions", "abort", *where, "--start-offset", "999", status=1)
    aborted = run("transactions", "abort", *where, "--start-offset", str(open_["start_offset"]), "--yes")
    assert aborted["producer_id"] == open_["producer_id"]
    told(
        lambda: run("transactions", "describe-producers", "--topic", "tx"),
        lambda rows: _with_open_transaction(rows) == [],
    )
    del again


def _open_transaction(bootstrap: str, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("tx", "open", partition=1)
    assert producer.flush(SECONDS_MAX) == 0
    return producer


def _with_open_transaction(rows: Any) -> list[Any]:
    return [row for row in rows if row["start_offset"] is not None]
