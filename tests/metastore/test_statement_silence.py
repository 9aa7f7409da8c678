"""A connection that stays open and says nothing more: the call ends, its outcome unknown, and the next one settles it.

Fault model: tests/torture/proxy.py's half_open, between us and a real Postgres.
"""

from __future__ import annotations

import random
import socket
import struct
import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.postgres import statement
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.metastore.commit_scenes import appended, batch, file_of, open_scene, pairs
from tests.torture.proxy import FaultProxy


@pytest.fixture
async def proxy(postgres_server: EmbeddedPostgres) -> AsyncIterator[FaultProxy]:
    """Run a proxy in front of the server."""
    proxy = FaultProxy(random.Random(0))
    await proxy.start()
    proxy.target = postgres_server.port
    yield proxy
    await proxy.close()


async def test_silence_has_an_end_and_a_repetition_learns_the_outcome(
    postgres_server: EmbeddedPostgres, metastore_url: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = metastore_url.partition("@/")[2].partition("?")[0]
    url = postgres_server.tcp_url(database, proxy.port)
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    scene = await open_scene(store)
    file = file_of([batch(scene.keys[0], 0)])
    await proxy.window("half_open", 0.0)
    with monkeypatch.context() as hasty:  # only for the call that meets silence: a slow machine must not end others
        hasty.setattr(statement, "SILENCE_S", 0.3 - store.cluster.settings.metastore_statement_timeout_ms / 1000)
        with pytest.raises(OutcomeUnknownError):
            await scene.commit(file)
    assert (await store.index.poll_feed({})).heads, "the other connection was as silent, and was not tried"
    (answer,) = await scene.commit(file)
    assert pairs(answer.batches) == appended(0)
    await store.close()


async def test_a_connection_that_is_closed_or_reset_by_then_is_no_error(metastore_url: str) -> None:
    """What hangs up runs in the event loop: its error would be a traceback in the log of a healthy agent."""
    connection = await psycopg.AsyncConnection.connect(metastore_url)
    await connection.close()
    statement._hang_up(connection)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(OSError, match="not connected"):
            client.shutdown(socket.SHUT_RDWR)
        statement._hang_up(client)  # type: ignore[arg-type]


async def test_a_server_that_answers_and_does_not_write_is_remembered_for_a_while(metastore: PostgresMetastore) -> None:
    """As on a full disk: reads are answered, and /readyz says what the server said."""
    assert metastore.refusal() is None
    connections = [await metastore.pool.getconn() for _ in range(metastore.pool.max_size)]
    for connection in connections:
        await connection.execute("SET default_transaction_read_only = on")
        await metastore.pool.putconn(connection)
    with pytest.raises(UnavailableError):
        await metastore.cluster.withdraw_settings(uuid.uuid4())
    assert "read-only transaction" in str(metastore.refusal())
