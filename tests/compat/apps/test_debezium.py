"""Debezium's embedded engine: it captures a table of Postgres, over a restart after its stored offsets were cleaned."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.compat.apps.app import JavaApp, is_compacted, was_cleaned
from tests.examples import EXAMPLES
from tests.kafka_clients import KafkaClients
from tests.tools import DEBEZIUM_JARS

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("debezium"),
]
PROGRAM = EXAMPLES / "debezium" / "CapturedTable.java"
ROWS, ROUNDS = 5, 40
"""Rows of a transaction. Debezium stores its offset after each batch, under one key."""


@pytest.fixture
def captured_postgres() -> Iterator[EmbeddedPostgres]:
    """One that decodes its log, with an empty table `orders`."""
    with tempfile.TemporaryDirectory(prefix="headrace-captured-") as directory:
        Path(directory).chmod(0o711)  # Postgres does not run as root, and must get through
        server = EmbeddedPostgres(Path(directory), fsync=False, tcp=True)
        with server, psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
        with server:
            with psycopg.connect(server.url()) as connection:
                connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
            yield server


def _captured(bootstrap: str) -> list[int]:
    """The ids of all captured changes, in their order."""
    found = KafkaClients(bootstrap).read_to_end("captured")
    return [json.loads(message.value() or b"")["after"]["id"] for message in found]


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_capture_continues_from_its_cleaned_offsets(
    bootstrap: str, captured_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("captured", 1, 1)])["captured"].result(60)
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", f"{DEBEZIUM_JARS}/*", str(PROGRAM)], check=True, timeout=300)
    server = urlsplit(captured_postgres.tcp_url())
    command = ["CapturedTable", bootstrap, str(server.port), str(server.username), str(server.password)]
    inserted: list[int] = []

    def insert() -> None:
        ids = range(len(inserted), len(inserted) + ROWS)
        with psycopg.connect(captured_postgres.url()) as connection:
            connection.execute("INSERT INTO orders SELECT unnest(%s::integer[])", [list(ids)])
        inserted.extend(ids)

    def has_all() -> bool:
        return len(_captured(bootstrap)) >= len(inserted)

    with JavaApp([tmp_path, f"{DEBEZIUM_JARS}/*"], command, tmp_path / "log") as app:
        for _ in range(ROUNDS):
            insert()
            app.until(has_all, "every row is captured")
        app.until(lambda: was_cleaned(bootstrap, "debezium-offsets"), "stored offsets were cleaned")
    assert is_compacted(bootstrap, "debezium-offsets")
    insert()
    with JavaApp([tmp_path, f"{DEBEZIUM_JARS}/*"], command, tmp_path / "log") as app:
        app.until(has_all, "the rows are captured that were written before the restart")
        insert()
        app.until(has_all, "the rows are captured that were written after the restart")
    assert _captured(bootstrap) == inserted
