"""`headrace dev` started again on its directory has everything that it had; a thrown-away one leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from headrace.cli.dev import _bucket
from headrace.cli.main import main
from headrace.storage.errors import InvalidError
from load.dev_server import DevServer
from tests.kafka_clients import KafkaClients

RECORDS = 200
HOUR_MS = 3_600_000


def _produce(bootstrap: str, numbers: range) -> None:
    KafkaClients(bootstrap, {"enable.idempotence": True}).produce("kept", numbers)


def _values(bootstrap: str) -> list[int]:
    return [int(message.value() or b"") for message in KafkaClients(bootstrap).read("kept", 2 * RECORDS)]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_restart_finds_all_topics_records_and_offsets(tmp_path: Path, is_killed: bool) -> None:
    """After a crash, and after a stop; a setting that was changed at run time stays, whichever a restart is given."""
    data_dir = tmp_path / "data"
    with DevServer(data_dir, keep_data=True, settings={"log.retention.hours": 720}) as server:
        asyncio.run(server.create_topic("kept", 2))
        assert _retention_ms(server) == 720 * HOUR_MS, "a new cluster gets the settings that dev is given"
        changing = ["set", f"log.retention.ms={600 * HOUR_MS}", "--brokers", "--bootstrap-server", server.bootstrap]
        assert main(["configs", *changing]) == 0
        _produce(server.bootstrap, range(RECORDS))
        if is_killed:
            server.kill()
    with DevServer(data_dir, settings={"log.retention.hours": 1}) as server:
        _produce(server.bootstrap, range(RECORDS, 2 * RECORDS))
        assert _retention_ms(server) == 600 * HOUR_MS
        values = _values(server.bootstrap)
        placed = (data_dir / "postgres" / "pgdata").resolve()
        assert placed.is_dir()
    assert values == list(range(2 * RECORDS))
    assert not placed.exists(), "a thrown-away server leaves nothing, also where its data was placed elsewhere"


@pytest.mark.slow
def test_a_data_directory_that_was_moved_has_everything(tmp_path: Path) -> None:
    """Its Postgres knows the bucket at the place where it was, and an earlier release noted that place in a file."""
    with DevServer(tmp_path / "before", keep_data=True) as server:
        asyncio.run(server.create_topic("kept", 1))
        _produce(server.bootstrap, range(RECORDS))
        earlier = server.bucket
    (tmp_path / "before").rename(tmp_path / "after")
    (tmp_path / "after" / "bucket.url").write_text(earlier + "\n")
    with DevServer(tmp_path / "after") as server:
        assert server.bucket == (tmp_path / "after" / "bucket").as_uri()
        _produce(server.bootstrap, range(RECORDS, 2 * RECORDS))
        assert _values(server.bootstrap) == list(range(2 * RECORDS))
    assert not (tmp_path / "before").exists()


def test_a_moved_directory_has_its_own_bucket(tmp_path: Path) -> None:
    own = (tmp_path / "bucket").as_uri()
    assert _bucket("", tmp_path) == own
    (tmp_path / "bucket.url").write_text("file:///elsewhere/bucket\n")
    assert _bucket("", tmp_path) == "file:///elsewhere/bucket", "its first run named one"
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "cluster.properties").write_bytes(b"")
    assert _bucket("", tmp_path) == own, "an earlier release noted the own one, too"
    with pytest.raises(InvalidError, match="the files of this cluster are in"):
        _bucket("file:///elsewhere/bucket", tmp_path)


def _retention_ms(server: DevServer) -> int:
    """The cluster's value."""
    with psycopg.connect(server.metastore_url) as connection:
        row = connection.execute("SELECT cluster_setting('log.retention.ms')").fetchone()
    assert row is not None
    return int(row[0])
