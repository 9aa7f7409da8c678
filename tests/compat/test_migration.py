"""X14: docs/start/MIGRATE.md, walked as a new user would: a real Kafka with ten topics, five groups, users and ACLs.

The commands are those of the page, in its order. What they did is looked at by librdkafka on both sides. A shop writes
all the time: what it got acknowledged is here in the end, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.bench.topic_admin import create_topic
from headrace.config.free_ports import free_ports
from load.dev_server import DevServer
from load.self_signed import write_certificate
from tests.compat.kafka_server import kafka_server
from tests.compat.link_source import PARTITIONS, Row, add_scram_users, login, read, secured
from tests.compat.old_kafka import (
    GROUPS,
    PASSWORDS,
    READ,
    RECORDS,
    TOPICS,
    Reader,
    Shop,
    committed,
    furnish,
    scram_file,
)
from tests.package.page_blocks import command_blocks
from tests.waiting import until

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow, pytest.mark.requirement("X14")]
PAGE = Path(__file__).parents[2] / "docs" / "start" / "MIGRATE.md"
KEYS = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
HERE, THERE = "127.0.0.1:9092", "127.0.0.1:9192"
"""The addresses of the page."""


def sections(page: Path) -> dict[str, list[str]]:
    """The commands of each section, by its heading."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for block in command_blocks(page):
        heading = next(line for line in reversed(lines[: block.line]) if line.startswith("#"))
        found.setdefault(heading.lstrip("# "), []).extend(block.units)
    return found


class Terminal:
    """Runs the page's commands as a reader would, in one folder."""

    def __init__(self, folder: Path, places: dict[str, str]) -> None:
        """`places`: addresses that take the place of the page's."""
        self.folder, self._places = folder, places
        (program := folder / "bin" / "headrace").parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli.main "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "COLUMNS": "200", "BILLING_PASSWORD": PASSWORDS["billing"]}

    def run(self, command: str, *, status: int = 0) -> str:
        """Return what the command prints, errors too."""
        for written, place in self._places.items():
            command = command.replace(written, place)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._environment[name] = value
            return ""
        words = ["bash", "-c", command]
        print(f"{time.monotonic():.1f} {command}", flush=True)
        ended = subprocess.run(
            words, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == status, (command, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The certificate of the old cluster."""
    return write_certificate(tmp_path)[0]


@pytest.fixture
def old(tmp_path: Path, certificate: Path) -> Iterator[tuple[str, str]]:
    """The addresses of the old cluster, without and with a login."""
    settings, secure = secured(certificate, tmp_path / "key.pem")
    (folder := tmp_path / "kafka").mkdir()
    with kafka_server(folder, settings) as bootstrap:
        add_scram_users(bootstrap)
        furnish(bootstrap)
        yield bootstrap, secure


@pytest.fixture
def here(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of the new cluster, without and with a login."""
    tmp_path.chmod(0o711)
    plain, secure = free_ports(2)
    settings = {
        "metadata.secret.keys": KEYS,
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secure}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }
    with DevServer(tmp_path / "dev", settings=settings) as server:
        yield server.bootstrap, f"127.0.0.1:{secure}"


def _client(bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": user}
    return {"bootstrap.servers": bootstrap, **given, "sasl.password": PASSWORDS[user]}


def _check_equal(old: str, here: str, topic: str) -> None:
    """The copy has what the old cluster has; of compacted topics, which both clean, the last value of each key."""
    for index in range(1 if topic == "table" else PARTITIONS):
        theirs, start, end = read({"bootstrap.servers": old}, topic, index)
        ours, our_start, our_end = read({"bootstrap.servers": here}, topic, index)
        if topic in ("table", "profiles"):
            assert _last_values(theirs) == _last_values(ours)
        else:
            assert (start, theirs) == (our_start, ours[: len(theirs)])
        assert our_end >= end


def _last_values(rows: list[Row]) -> dict[bytes, tuple[int, bytes]]:
    """The offset and value of each key that has one."""
    found = {key: (offset, value) for offset, _, key, value, _ in rows}
    return {key: each for key, each in found.items() if each[1] is not None}


def test_the_page_moves_a_cluster(
    old: tuple[str, str], here: tuple[str, str], certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, secure = old
    steps = sections(PAGE)
    (folder := tmp_path / "reader").mkdir()
    terminal = Terminal(folder, {HERE: here[0], THERE: secure})
    scram_file(folder, certificate)
    at_old = {"bootstrap.servers": secure, **login("SCRAM-SHA-256", certificate, "shop", PASSWORDS["shop"])}
    shop = Shop(at_old, "orders.eu", "old")
    shop.start()

    _prepare(terminal, steps["1. Prepare"])
    for command in (*steps["2. Copy"], *steps["3. Check"]):
        shown = terminal.run(command)
    assert f"{len(TOPICS) * PARTITIONS - 2} of {len(TOPICS) * PARTITIONS - 2} partitions are equal" in shown

    groups, describe = steps["4. Move the consumers"]
    with Reader({"bootstrap.servers": plain}, "billing", GROUPS["billing"]) as reader:
        reader.read(30)
    last = committed({"bootstrap.servers": plain}, "billing", "orders.eu")
    until(lambda: committed({"bootstrap.servers": here[0]}, "billing", "orders.eu") == last)
    assert [line.split()[0] for line in terminal.run(groups).splitlines()[1:]] == sorted(GROUPS)
    billing = Reader(_client(here[1], "billing", "SCRAM-SHA-512"), "billing", GROUPS["billing"])
    with billing:
        billing.read(RECORDS - READ - 30)
        assert GROUPS["billing"] in terminal.run(describe)
        for index, offset in last.items():
            assert offset < 0 or min(at for partition, at in billing.seen if partition == index) == offset

        for command in steps["5. Move the producers"]:
            shown = terminal.run(command)
        assert f"{PARTITIONS} of {PARTITIONS} partitions are equal" in shown
        until(lambda: shop.refusals, "the shop is not refused at the old cluster")
        shop.stop()
        moved = Shop(_client(here[1], "shop", "SCRAM-SHA-256"), "orders.eu", "new")
        moved.start()
        for command in steps["6. End"]:
            terminal.run(command)
        moved.stop()
        assert not moved.refusals
        billing.read(len(shop.acknowledged) + len(moved.acknowledged))  # and what the furnished group had not read
    assert not set(reader.seen) & set(billing.seen), "no record was read again after the move"
    read_by_billing = reader.values + billing.values
    orders = [text for text in read_by_billing.elements() if text.split()[0] in ("old", "new")]
    assert sorted(orders) == sorted(shop.acknowledged + moved.acknowledged), "each once, none else"
    for topic in TOPICS:
        _check_equal(plain, here[0], topic)
    for group, topic in GROUPS.items():
        if group != "billing":
            theirs = committed({"bootstrap.servers": plain}, group, topic)
            assert committed({"bootstrap.servers": here[0]}, group, topic) == theirs


def _prepare(terminal: Terminal, commands: list[str]) -> None:
    """Step 1: what the export leaves to the reader is asked for, and what it has is here afterwards."""
    export, dry_run, write, directory, password, check, apply = commands
    terminal.run(export)
    seen = terminal.run(dry_run)
    assert all(topic in seen for topic in (*TOPICS, *GROUPS)), seen
    assert f"would copy {len(TOPICS)} topics" in seen
    notes = terminal.run(write)
    assert "users: no Kafka shows a password: put those of billing, link, shop into the files" in notes
    refused = terminal.run(check, status=1)
    assert all(f"user {user} " in refused for user in PASSWORDS), refused
    for command in (directory, password):
        terminal.run(command)
    for user in ("link", "shop"):
        terminal.run(f'echo "{PASSWORDS[user]}" > secrets/{user}')
    terminal.run(check)
    terminal.run(apply)
    assert '"principal": "User:billing"' in terminal.run("headrace acls list --json")


def _orders(bootstrap: str) -> list[str]:
    """The text of each order that a consumer finds."""
    found = [
        row for index in range(PARTITIONS) for row in read({"bootstrap.servers": bootstrap}, "orders.eu", index)[0]
    ]
    return sorted(row[3].decode() for row in found)


def test_the_page_moves_to_another_region_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands after a failover: what the lost region has more is named, and is gone once it is a copy."""
    create, force, verify, drop, delete, back = sections(PAGE)["Another region: Headrace to Headrace"]
    (folder := tmp_path / "reader").mkdir()
    tmp_path.chmod(0o711)
    (port,) = free_ports(1)
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with DevServer(tmp_path / "other") as other:
        terminal = Terminal(folder, {HERE: f"127.0.0.1:{port}", "127.0.0.1:9292": other.bootstrap})
        main = DevServer(tmp_path / "main", settings=settings, keep_data=True)
        with main:
            create_topic(main.bootstrap, "orders.eu", PARTITIONS)
            terminal.run(create)
            shop = Shop({"bootstrap.servers": main.bootstrap, "message.timeout.ms": 5_000}, "orders.eu", "before")
            shop.start()
            terminal.run("headrace link show main --follow -b 127.0.0.1:9292")
            main.kill()
        assert "promoted: orders.eu" in terminal.run(force)
        until(lambda: shop.refusals, "the shop notices that the region is gone")
        shop.stop()
        copied = _orders(other.bootstrap)
        moved = Shop({"bootstrap.servers": other.bootstrap}, "orders.eu", "after")
        moved.start()
        with DevServer(tmp_path / "main", settings=settings) as again:
            left = set(shop.acknowledged) - set(copied)
            assert set(copied) | left <= set(_orders(again.bootstrap)), "all that it acknowledged is there"
            until(lambda: len(moved.acknowledged) > len(left) + 2 * PARTITIONS)
            shown = terminal.run(verify, status=1 if left else 0)
            assert not left or "partitions are not equal" in shown
            for command in (drop, delete, back):
                terminal.run(command)
            terminal.run("headrace link show back --follow -b 127.0.0.1:9092")
            moved.stop()
            terminal.run("headrace link verify back -b 127.0.0.1:9092")
            assert _orders(again.bootstrap) == _orders(other.bootstrap) == sorted([*copied, *moved.acknowledged])
