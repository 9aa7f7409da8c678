"""A role for planning scans: it plans and pins; it reads no table, commits nothing, and calls nothing else."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from psycopg import errors, sql

from headrace.cli.main import main
from headrace.cli.planners import FUNCTIONS, SCHEMA, VIEWS
from headrace.config.settings import Settings
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.postgres.sql_files import signatures
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.offsets import special_offsets
from headrace.scan.partitions import Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, pin, plan
from headrace.storage.errors import HeadraceError
from tests.metastore.bulk_scenes import bulk_file
from tests.metastore.commit_scenes import batch, file_of, open_scene

_numbers = itertools.count(1)
_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"


@pytest.fixture
def role(metastore_url: str) -> Iterator[str]:
    """A role that may plan."""
    name = f"planner_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(metastore_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name}".encode())
        assert main(["planners", "--role", name, "--metastore-url", metastore_url]) == 0
        yield name
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


def url_of(url: str, role: str) -> str:
    """Return the URL with the role's rights: the server of the tests lets only one account in, so it takes the
    role's settings.
    """
    return f"{url}&options={quote(f'-c role={role} -c search_path={SCHEMA}')}"


async def test_it_plans_and_pins(metastore: PostgresMetastore, metastore_url: str, role: str) -> None:
    scene = await open_scene(metastore, 2)
    await scene.commit(file_of([batch(key) for key in scene.keys]))
    planner = await PostgresMetastore.open(url_of(metastore_url, role), Settings(metastore_pool_size=1))
    try:
        partitions = select(Subscribe((scene.topic.name,)), await TopicCatalog(planner.cluster).refresh())
        kinds = dict.fromkeys(partitions, int(OffsetKind.LATEST))
        ends = await special_offsets(planner.index, kinds, committed=True)
        assert set(ends.values()) == {5}
        pins: JobApi = planner.jobs
        token = await pin(pins, "test", 60_000)
        ranges = {partition: WantedOffsets(0, end) for partition, end in ends.items()}
        planned = await plan(planner.index, ranges, fail_on_data_loss=True, committed=True)
        assert [each.slices[0].offsets for each in planned] == [5, 5]
        assert [job.job_id for job in await metastore.reports.list_jobs(9)] == [token.job_id]
        await planner.jobs.release_pins([token])
        assert await metastore.reports.list_jobs(9) == []
    finally:
        await planner.close()


async def test_it_commits_nothing(metastore: PostgresMetastore, metastore_url: str, role: str) -> None:
    scene = await open_scene(metastore, 1)
    planner = await PostgresMetastore.open(url_of(metastore_url, role), Settings(metastore_pool_size=1))
    try:
        with pytest.raises(HeadraceError):
            await planner.commits.commit_files(*scene.agent, [file_of([batch(scene.keys[0])])])
        file = bulk_file(await metastore.commits.database_ms(), random.Random(1), scene.keys)
        with pytest.raises(HeadraceError):
            await planner.commits.stage_bulk_chunk(file.file_id, 0, [file])
    finally:
        await planner.close()
    assert await scene.read() == []


def test_it_reads_no_table_and_calls_no_other_function(metastore_url: str, role: str) -> None:
    refused = 0
    with psycopg.connect(url_of(metastore_url, role), autocommit=True) as connection:
        tables = {name for (name,) in connection.execute(_TABLES)}
        assert {"topics", "extents", "partition_heads"} <= tables
        for table in tables:
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(sql.SQL("SELECT * FROM public.{}").format(sql.Identifier(table)))
            for change in ("DELETE FROM {}", "TRUNCATE {}"):
                name = sql.SQL("headrace_planning.{}" if table in VIEWS else "public.{}").format(sql.Identifier(table))
                with pytest.raises((errors.InsufficientPrivilege, errors.WrongObjectType)):
                    connection.execute(sql.SQL(change).format(name))
        for statement in (
            "SELECT public.allocate_producer_ids(1)",
            "SELECT public.list_offsets('{1}', '{1}')",
            "SELECT * FROM public.decide_bulk_write('w', 0, gen_random_uuid(), 0, '{1}', '{1}', true)",
            "SELECT public.finish_job(1, 1)",
            "CREATE TABLE public.mine ()",
            "CREATE FUNCTION headrace_planning.wall_ms(int) RETURNS int LANGUAGE sql RETURN 1",
            "CREATE FUNCTION public.wall_time() RETURNS int LANGUAGE sql RETURN 1",
            "SELECT zone_secret FROM headrace_planning.cluster",
        ):
            with pytest.raises(
                (
                    errors.InsufficientPrivilege,
                    errors.UndefinedColumn,
                    errors.UndefinedTable,
                    errors.UndefinedObject,
                    errors.UndefinedFunction,  # of another function that it calls: the search_path has none of them
                )
            ):
                connection.execute(statement.encode())
            refused += 1
    assert refused == 8


def test_functions_run_with_a_fixed_search_path_and_only_for_the_named_roles(metastore_url: str, role: str) -> None:
    with psycopg.connect(metastore_url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT proname, prosecdef, proconfig[1], has_function_privilege('public', oid, 'EXECUTE') FROM pg_proc"
            " WHERE pronamespace = 'headrace_planning'::regnamespace ORDER BY 1"
        ).fetchall()
        assert found == [(name, True, "search_path=pg_catalog, public, pg_temp", False) for name in sorted(FUNCTIONS)]
        assert set(FUNCTIONS) <= signatures().keys()
        other = f"{role}_2"
        connection.execute(f"CREATE ROLE {other}".encode())
        try:
            assert main(["planners", "--role", other, "--metastore-url", metastore_url]) == 0
            query = "SELECT has_schema_privilege(%s, 'headrace_planning', 'USAGE')"
            assert [connection.execute(query, [name]).fetchone() for name in (role, other)] == [(False,), (True,)]
        finally:
            connection.execute(f"DROP OWNED BY {other}".encode())
            connection.execute(f"DROP ROLE {other}".encode())


def test_a_role_that_does_not_exist_is_named(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planners", "--role", "no_such", "--metastore-url", metastore_url]) == 1
    assert 'role "no_such" does not exist' in capsys.readouterr().err
