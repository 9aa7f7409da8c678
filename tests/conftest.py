"""Fixtures of most tests: one throw-away Postgres per test process, a database as the template is for each test.

`postgres_server`  the embedded server (fsync off), started once per process; HEADRACE_TEST_POSTGRES=16 chooses its
                   major version
`metastore_url`    a fresh, migrated database: copied from a template, about 16 ms
`metastore`        a PostgresMetastore on it; with HEADRACE_TEST_POOLER=1 through PgBouncer in transaction mode, else on
                   a database and sessions that an earlier test left (kept_databases.py)
`fake_clock`       a ManualClock
`patch`            replaces what a planted bug replaces; a test without seeds takes it
`trial`            the seeds of a planted bug; `throwaway`: a database for each of them
"""

from __future__ import annotations

import itertools
import multiprocessing.util
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from headrace.config.cluster_values import NEEDED_TO_DELETE, proposed
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import remove_data_dir
from headrace.metastore.postgres.migrate import migrate
from load.postgres_servers import Servers, make_primary
from tests.kept_databases import Database, KeptDatabases, close, continued
from tests.manual_clock import ManualClock
from tests.memory_folder import remove_leftovers, use_memory_folder
from tests.metastore.segment_keys import before_keys
from tests.metastore.sql_sources import Throwaway
from tests.patch import Patch
from tests.pgbouncer import running_pgbouncer
from tests.planted import Report, Trial
from tests.seeds import NIGHTLY
from tests.tools import why_missing
from tests.tools.postgres import find_pgbouncer, find_postgres

if TYPE_CHECKING:
    from headrace.metastore.postgres.store import PostgresMetastore

# no deadlines: a busy machine must not fail a test
settings.register_profile(
    "headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("headrace")

# the nightly run tries constants of the product as values: to read all loaded modules for them takes a second in
# each process of pytest
if NIGHTLY not in os.environ:
    providers._get_local_constants = providers.Constants  # type: ignore[attr-defined]

# what another imports comes before it: pytest rewrites the assertions of plugins that it imports itself
_HOUSE = ("compiling", "garbage", "last_run", "needs", "skip_table", "units", "cost", "limits", "progress", "failures")
pytest_plugins = ("tests.simulation.summary", *(f"tests.house.{name}" for name in _HOUSE))

if not (Path(__file__).resolve().parents[1] / "agent").is_dir():
    # an unpacked sdist, in which all packages are in src/: these tests are about the repository's folders and its git
    _of_folders = ("docs", "limits_page", "reverted_fixes", "tasks", "tidy", "words")
    collect_ignore = ["package", *(f"house/test_{name}.py" for name in _of_folders)]

TEMPLATE = "headrace_template"
SESSIONS_OF_A_HISTORY = 5
"""Four of a pool, and one of its readers."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose where the run's files are: before the workers start, which inherit it."""
    if hasattr(config, "workerinput"):
        return
    remove_leftovers()
    folder = use_memory_folder()
    if folder is not None:
        # after what multiprocessing removes in it, by a priority of -100
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


_numbers = itertools.count(1)


@pytest.fixture
def trial(request: pytest.FixtureRequest, record_property: Report) -> Iterator[Trial]:
    """The seeds of a planted bug; what it replaces is put back afterwards."""
    with request.param.begun(record_property) as begun:
        yield begun


@pytest.fixture
def patch() -> Iterator[Patch]:
    """Plant a bug until the test ends, which fails if nothing of what is replaced was called."""
    with ExitStack() as stack:
        patch = Patch(stack)
        yield patch
    if unused := patch.never_called():
        pytest.fail(f"what the bug replaces was never called: {sorted(unused)}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """A server with data that is removed after the test run."""
    version = os.environ.get("HEADRACE_TEST_POSTGRES")
    installation = find_postgres(int(version)) if version else None
    if version and installation is None:
        pytest.fail(f"HEADRACE_TEST_POSTGRES={version} is not on this machine")
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as directory:
        place = Path(directory)
        place.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        server = EmbeddedPostgres(place, fsync=False, tcp=True, installation=installation)
        server.start()
        # the statistics of a vacuum between two tests would change the plans of the second
        _run(server, "ALTER SYSTEM SET autovacuum_naptime = '1d'")
        _run(server, "SELECT pg_reload_conf()")
        yield server
        server.stop()


@pytest.fixture(scope="session")
def pooler_port(postgres_server: EmbeddedPostgres) -> Iterator[int]:
    """PgBouncer in front of the server; skips where it is missing."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip(str(why_missing("pgbouncer")))
    server = urlsplit(postgres_server.tcp_url())
    assert server.port is not None
    with running_pgbouncer(program, server.port, str(server.username), str(server.password)) as port:
        yield port


@pytest.fixture(scope="session")
def prepared_primary() -> Iterator[Path | None]:
    """The directory of a stopped server with a migrated metastore: `Servers` copies it. None where Postgres cannot
    reach this process's temporary folder, so that its data is placed elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-primary-") as directory:
        made = make_primary(Path(directory))
        yield None if (made / "pgdata").is_symlink() else made
        remove_data_dir(made)


@pytest.fixture
def servers(prepared_primary: Path | None) -> Iterator[Servers]:
    """A primary, and standbys that a test adds."""
    with Servers(prepared=prepared_primary) as servers:
        yield servers


@pytest.fixture(scope="session")
def metastore_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a migrated database that is copied for each test; no test connects to it.

    The cluster is as an older version made it, without keys of remote segments. It has values of what deletion needs.
    Other settings have none, so that tests give them to their processes.
    """
    _run(postgres_server, f"CREATE DATABASE {TEMPLATE}")
    migrate(postgres_server.url(TEMPLATE), values={name: proposed(Settings())[name] for name in NEEDED_TO_DELETE})
    before_keys(postgres_server.url(TEMPLATE))
    # the first session after a change of the catalogs writes them to a file, which copies of the database then have
    psycopg.connect(postgres_server.url(TEMPLATE)).close()
    return TEMPLATE


Copies = Callable[[], AbstractContextManager[str]]
"""Makes a copy of the template; its address. Dropped at the end."""


@pytest.fixture(scope="session")
def copies(postgres_server: EmbeddedPostgres, metastore_template: str) -> Iterator[Copies]:
    """Makes all copies over one connection: a new one for each statement takes a third of a copy's time."""

    @contextmanager
    def copy() -> Iterator[str]:
        name = f"test_{next(_numbers)}"
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {metastore_template} STRATEGY FILE_COPY")
        yield postgres_server.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        yield copy


@pytest.fixture(scope="session")
def kept_databases(copies: Copies) -> Iterator[KeptDatabases]:
    """Databases that one test with a metastore leaves to the next."""
    kept = KeptDatabases(copies)
    yield kept
    kept.close()


@pytest.fixture
def kept_database(request: pytest.FixtureRequest, copies: Copies) -> Iterator[Database | None]:
    """One of them, for a test that takes `metastore`. None for others, and where sessions are a pooler's."""
    is_kept = "metastore" in request.fixturenames and request.node.get_closest_marker("own_database") is None
    if is_kept and "HEADRACE_TEST_POOLER" not in os.environ:
        with request.getfixturevalue("kept_databases").one() as database:
            yield database
    else:
        yield None


@pytest.fixture(scope="session")
def planted_databases(copies: Copies) -> Iterator[KeptDatabases]:
    """Databases that one planted bug leaves to the next."""
    kept = KeptDatabases(copies, SESSIONS_OF_A_HISTORY)
    yield kept
    kept.close()


@pytest.fixture
def throwaway(
    postgres_server: EmbeddedPostgres, metastore_template: str, planted_databases: KeptDatabases
) -> Throwaway:
    return Throwaway(postgres_server, metastore_template, planted_databases)


@pytest.fixture
def metastore_url(kept_database: Database | None, copies: Copies) -> Iterator[str]:
    """Address of a migrated database that no other test uses meanwhile. They share one cluster and incarnation id.

    Merged files have no keys: `with_keys` of tests/metastore/segment_keys.py changes that.
    """
    if kept_database is not None:
        yield kept_database.url
    else:
        with copies() as url:
            yield url


@pytest.fixture(scope="module")
def module_metastore_url(copies: Copies) -> Iterator[str]:
    """Address of a migrated database for a module with a shared cluster: its tests break nothing on purpose."""
    with copies() as url:
        yield url


@pytest.fixture
def pooled_url(postgres_server: EmbeddedPostgres, metastore_url: str, pooler_port: int) -> str:
    """The test's database by way of PgBouncer."""
    return postgres_server.tcp_url(urlsplit(metastore_url).path.lstrip("/"), pooler_port)


@pytest.fixture
async def metastore(
    metastore_url: str, kept_database: Database | None, request: pytest.FixtureRequest
) -> AsyncIterator[PostgresMetastore]:
    """The real metastore on a database that no other test uses meanwhile.

    Its pool begins with one connection, which is enough for most tests: each costs Postgres four milliseconds of CPU,
    and compiles the functions that it calls again. So the test before leaves its own (tests/kept_databases.py).
    """
    from headrace.metastore.postgres import pool
    from headrace.metastore.postgres.store import PostgresMetastore

    url = request.getfixturevalue("pooled_url") if "HEADRACE_TEST_POOLER" in os.environ else metastore_url
    beginning = nullcontext() if kept_database is None else continued(kept_database)
    with pytest.MonkeyPatch.context() as patched, beginning:
        patched.setattr(pool, "_opened", partial(_opened_with_one, pool._opened))
        store = await PostgresMetastore.open(url, Settings(metastore_pool_size=4))
    yield store
    await (store.close() if kept_database is None else close(store, kept_database))


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command that a test runs in its own process leaves the mask of modes and the folder as they were: the next
    tests of this process would meet them.
    """
    before = _mask_and_folder()
    yield
    assert _mask_and_folder() == before


@pytest.fixture
def fake_clock() -> ManualClock:
    """Time that only this test moves."""
    return ManualClock()


async def _opened_with_one(opened: Any, arguments: Any, settings: Settings, least: int, most: int, name: str) -> Any:
    return await opened(arguments, settings, min(1, least), most, name)


def _mask_and_folder() -> tuple[str, str]:
    """Read, because os.umask can only be asked by changing it, for every thread."""
    status = Path("/proc/self/status").read_text()
    return status.partition("Umask:")[2].partition("\n")[0].strip(), os.getcwd()


def _run(server: EmbeddedPostgres, sql: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql)
