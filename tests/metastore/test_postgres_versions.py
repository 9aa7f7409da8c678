"""The metastore on every supported Postgres, and behind PgBouncer in transaction mode.

The oldest version has one quick test in `make test`; all other tests run on the newest. `make test-all` runs the suites
of commits, migrations, groups, jobs and the cluster on each version, in a separate process because the server is chosen
once per process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from tests.house.needs import require
from tests.metastore.commit_scenes import appended, batch, file_of, open_scene, pairs
from tests.pgbouncer import SERVER_CONNECTIONS
from tests.tools.postgres import BUILDS, find_postgres

ROOT = Path(__file__).resolve().parents[2]
SUITES = [
    "tests/metastore/test_commit.py",
    "tests/metastore/test_producer_expiry.py",
    "tests/metastore/test_commit_concurrency.py",
    "tests/metastore/test_migrate.py",
    "tests/metastore/test_statements.py",
    *(f"tests/contracts/test_{noun}_contract.py" for noun in ("cluster", "groups", "jobs")),
]


@pytest.fixture(params=[pytest.param(major, marks=pytest.mark.slow if major > min(BUILDS) else ()) for major in BUILDS])
def server_of_version(request: pytest.FixtureRequest) -> Iterator[tuple[int, EmbeddedPostgres]]:
    """A server of each major version."""
    require(f"postgres-{request.param}")
    with tempfile.TemporaryDirectory(prefix="headrace-version-") as directory:
        Path(directory).chmod(0o711)
        server = EmbeddedPostgres(Path(directory), fsync=False, installation=find_postgres(request.param))
        server.start()
        yield request.param, server
        server.stop()


async def test_records_are_committed_and_found_on_each_version(
    server_of_version: tuple[int, EmbeddedPostgres],
) -> None:
    version, server = server_of_version
    with psycopg.connect(server.url()) as connection:
        assert connection.info.server_version // 10_000 == version
    migrate(server.url())
    assert migrate(server.url()).applied == ()
    await commit_and_find(await PostgresMetastore.open(server.url(), Settings(metastore_pool_size=4)))


async def test_records_are_committed_and_found_behind_a_pooler(pooled_url: str) -> None:
    """With more clients than server connections: what one prepared runs where another prepared something else."""
    store = await PostgresMetastore.open(pooled_url, Settings(metastore_pool_size=3 * SERVER_CONNECTIONS))
    await commit_and_find(store)


async def commit_and_find(store: PostgresMetastore) -> None:
    """One commit, a duplicate of it, and many at once, read again."""
    scene = await open_scene(store, partitions=8)
    first, *others = scene.keys
    file = file_of([batch(first, 0)])
    (answer,) = await scene.commit(file)
    (again,) = await scene.commit(file_of([batch(first, 0)]))
    assert pairs(answer.batches) == appended(0)
    assert pairs(again.batches) == [(BatchOutcome.DUPLICATE, 0)]
    rounds = [scene.commit(file_of([batch(key)])) for _ in range(5) for key in others]
    offsets = [pairs(committed.batches)[0][1] for (committed,) in await asyncio.gather(*rounds)]
    assert sorted(offsets) == [offset for offset in range(0, 25, 5) for _ in others]
    found = await store.index.find_extents([ExtentQuery(key, 0, 1 << 20) for key in others])
    assert [extents.extents[-1].last_offset for extents in found] == [24] * len(others)
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("major", BUILDS)
def test_the_suites_pass_on_each_version(major: int) -> None:
    require(f"postgres-{major}")
    run_suites(HEADRACE_TEST_POSTGRES=str(major))


@pytest.mark.slow
def test_the_suites_pass_behind_a_pooler() -> None:
    require("pgbouncer")
    run_suites(HEADRACE_TEST_POOLER="1")


def run_suites(**environment: str) -> None:
    """Run the suites in a separate process; the end of their output is shown if they fail."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *SUITES],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
