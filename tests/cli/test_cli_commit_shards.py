"""`headrace storage grow-commit-shards`: a formatted metastore, and an agent of the release before."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AGENT_FEATURES, COMMIT_SHARDS, AgentRegistration
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore


@pytest.fixture
def url(postgres_server: EmbeddedPostgres) -> str:
    name = f"growing_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = postgres_server.url(name)
    migrate(url, commit_shards=8)
    return url


def grow(url: str, to: int) -> int:
    return main(["storage", "grow-commit-shards", "--metastore-url", url, "--to", str(to)])


def register_older(url: str) -> None:
    """An agent that does not follow growth."""

    async def join() -> None:
        metastore = await PostgresMetastore.open(url, Settings())
        features = {name: levels for name, levels in AGENT_FEATURES.items() if name != COMMIT_SHARDS}
        registration = AgentRegistration(1, uuid.uuid4(), "127.0.0.1", 9092, None, features=features)
        try:
            await metastore.cluster.register_agent(registration)
        finally:
            await metastore.close()

    asyncio.run(join())


def test_the_count_grows_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert grow(url, 32) == 0
    assert capsys.readouterr().out == "commit.shards=32: before, there were 8\n"
    assert grow(url, 32) == 0
    assert capsys.readouterr().out == "commit.shards=32: there are as many already\n"
    assert grow(url, 48) == 1
    assert "possible=[64, 128, 256, 512, 1024]" in capsys.readouterr().err
    assert grow(url, 16) == 1


def test_an_agent_of_the_release_before_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    register_older(url)
    assert grow(url, 32) == 1
    assert "an agent does not support the level: feature=commit.shards level=32 node_id=1" in capsys.readouterr().err
