"""The secret is the same for every agent of a cluster, and every cluster's own."""

from __future__ import annotations

from headrace.config.settings import Settings
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import session


async def test_one_secret_per_cluster(metastore: PostgresMetastore, metastore_url: str) -> None:
    other = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    secret = await metastore.zone_secret()
    assert len(secret) == 32
    assert await other.zone_secret() == secret
    await other.close()


async def test_another_cluster_has_another(metastore: PostgresMetastore, metastore_url: str) -> None:
    url = metastore_url.replace("/test_", "/secret_")
    name = url.rsplit("/", 1)[1].split("?")[0]
    async with session(metastore_url) as raw:
        await raw.execute(f"CREATE DATABASE {name}".encode())
        try:
            migrate(url)
            other = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
            assert await other.zone_secret() != await metastore.zone_secret()
            await other.close()
        finally:
            await raw.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
