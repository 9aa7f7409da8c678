"""A connection that stays open and says nothing more: the call ends, its outcome unknown, and the next one settles it.

Fault model: load/torture/proxy.py's half_open, between us and a real Postgres.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from headrace.config.settings import Settings
from headrace.metastore.postgres import statement
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError
from load.torture.proxy import FaultProxy
from tests.metastore.commit_scenes import appended, batch, file_of, open_scene, pairs


@pytest.fixture
async def proxy(postgres_server: EmbeddedPostgres) -> AsyncIterator[FaultProxy]:
    """In front of the server."""
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
        hasty.setattr(statement, "SILENCE_S", 0.3 - store.settings.metastore_statement_timeout_ms / 1000)
        with pytest.raises(OutcomeUnknownError):
            await scene.commit(file)
    assert (await store.poll_feed({})).heads, "the other connection was as silent, and was not tried"
    (answer,) = await scene.commit(file)
    assert pairs(answer.batches) == appended(0)
    await store.close()
