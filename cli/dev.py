"""`headrace dev`: Postgres, bucket and agents on this machine, with nothing to install first.

Place: supervises the embedded Postgres and `headrace agent` processes; for trying out, tests and the demo.
Production runs `headrace agent`.
Invariant: all state is under the data directory; a restart on it finds all data, also after the directory was moved.
An agent that exits is reported and not restarted. If the supervisor exits, its child processes are stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.cli.children import AgentProcess, load_code, moved
from headrace.cli.options import PREFIX, add_settings, settings_from, whole
from headrace.cli.output import write, write_error
from headrace.cli.storage import format_bucket, look
from headrace.config.addresses import is_object_store, shown_address
from headrace.config.cluster_values import proposed
from headrace.config.declared import OF_BUCKETS, declared
from headrace.config.listeners import COMPACTOR, TABLES, Endpoint, http_port, listeners, listeners_text, roles
from headrace.config.settings import Settings
from headrace.config.topic_configs import LOW_LATENCY_ENABLE
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.address import url_with_password
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import bucket_address, read_bucket_id
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY as CLUSTER_ID
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.tables.extra import require_tables

DESCRIPTION = """\
Start a complete Headrace on this machine: an embedded Postgres, a directory as bucket, one or more
agents. Prints one line with the word `ready` and its addresses when clients can connect, and stops
cleanly on SIGTERM or Ctrl-C. A restart on the same directory finds all data.

  headrace dev
  headrace dev --data-dir /tmp/headrace --agents 2 --port 9092
  headrace dev --agents 3 --port 9101 --behind-one-address 127.0.0.1:9092
  headrace dev --metastore-url postgresql://me@db/headrace_dev
  headrace dev --tables

With --metastore-url no Postgres is started: the metadata is in that database, which has to be empty or
of an earlier run on the same directory. With --bucket the files are there instead of in the directory,
on this run and on later ones.
"""
NEXT_STEPS = """\
  try it:   headrace topics create hello -b {address}
            headrace records produce hello -b {address}     (type lines, end with Ctrl-D)
            headrace records consume hello -b {address}
  console:  headrace console -b {address}     (topics, records, groups and agents in a browser)
  Kafka clients connect to {addresses}; Ctrl-C stops everything and keeps the data in {data_dir}"""
SHOWN = ("listeners", "http.port", "metastore.url", "bucket", "linger.ms", "log.level")
AGENT_START_SECONDS = 180
OWN = "bucket"
"""The bucket inside the data directory."""
REMEMBERED = "bucket.url"
"""File of the data directory: the bucket of its first run, if that is not OWN."""
PRIVATE = "INTERNAL"
"""The listener that agents use between each other, if clients use one address for all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--data-dir", type=Path, default=Path(".headrace"), help="directory for all data (.headrace)")
    parser.add_argument(
        "--agents",
        type=whole(1, 100),
        default=1,
        help="number of agents; ports and node ids count up from the given ones (1)",
    )
    parser.add_argument(
        "--behind-one-address",
        metavar="HOST:PORT",
        help="all agents advertise this address, of a load balancer that you run in front of their ports",
    )
    parser.add_argument(
        "--tables", action="store_true", help="keep topics as Iceberg tables (headrace tables), in the data directory"
    )
    parser.add_argument(
        "--port", type=whole(0, 65_535), metavar="N", help="short for --listeners PLAINTEXT://127.0.0.1:N (9092)"
    )
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives; 1 if every agent has exited."""
    before = os.umask(0o077)  # also for the processes that it starts
    try:
        return _run(args)
    finally:
        os.umask(before)


def _run(args: argparse.Namespace) -> int:
    load_code()  # while Postgres starts
    if args.port is not None:
        if vars(args).get(f"{PREFIX}listeners"):
            raise InvalidError("--port and --listeners: use one of them")
        setattr(args, f"{PREFIX}listeners", f"PLAINTEXT://127.0.0.1:{args.port}")
    settings = settings_from(args)
    data_dir: Path = args.data_dir.absolute()
    _make(data_dir)
    settings = msgspec.structs.replace(settings, bucket=_bucket(settings.bucket, data_dir))
    passed_on = {key.removeprefix(PREFIX): str(v) for key, v in vars(args).items() if key.startswith(PREFIX) and v}
    passed_on.pop("listeners", None)  # see _agent
    if args.behind_one_address:
        settings = msgspec.structs.replace(settings, advertised_shared=True)
        passed_on |= {
            "advertised.listeners": f"PLAINTEXT://{args.behind_one_address}",
            "inter.broker.listener.name": PRIVATE,
        }
    if args.config:
        passed_on["config"] = str(args.config)
    elif _has_low_latency(settings.bucket, passed_on):
        settings = msgspec.structs.replace(settings, low_latency_enable=True)
    if args.tables:
        require_tables()
        passed_on |= _own_catalog(settings, data_dir)
    if settings.metastore_url:
        url = url_with_password(settings)
        asyncio.run(_refuse_foreign(settings, url))
        return _serve(settings, url, data_dir, args.agents, passed_on)
    _make_private(data_dir / "postgres")
    with EmbeddedPostgres(data_dir / "postgres") as url:
        return _serve(settings, url, data_dir, args.agents, passed_on)


def _has_low_latency(bucket: str, passed_on: Mapping[str, str]) -> bool:
    """Return whether a new cluster keeps small files in its Postgres first: the bucket is far, Postgres is next to it.
    Not if a flag or the environment says something."""
    is_said = LOW_LATENCY_ENABLE in passed_on or declared()[LOW_LATENCY_ENABLE].environment in os.environ
    return is_object_store(bucket) and not is_said


def _make(data_dir: Path) -> None:
    """Make the directories. InvalidError if that is not possible, or another user has made them."""
    try:
        if not data_dir.exists():
            _make_private(data_dir)
        _make_private(data_dir / OWN)
    except OSError as error:
        raise InvalidError(f"cannot create the data directory: {data_dir}: {error.strerror}") from error
    for part in (data_dir, data_dir / OWN, data_dir / "postgres"):
        if part.exists() and not os.access(part, os.R_OK | os.W_OK | os.X_OK):
            raise InvalidError(
                f"the data directory belongs to another user: {part} user={_owner(part)};"
                " name another one by --data-dir"
            )


def _make_private(folder: Path) -> None:
    """Make a directory that no other user can read, also if an earlier release made it. Root's Postgres runs as another
    user, who has to pass through.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(0o700 if os.geteuid() or folder.name == OWN else 0o711)


def _bucket(named: str, data_dir: Path) -> str:
    """Return the bucket of this directory's cluster; InvalidError if `named` (empty: not named) is another one."""
    own, file = (data_dir / OWN).as_uri(), data_dir / REMEMBERED
    if not file.exists() and named not in ("", own):
        if (data_dir / "postgres").exists():
            raise InvalidError(f"the files of this cluster are in {own}; name another --data-dir for bucket {named}")
        return named
    is_own = (data_dir / OWN / CLUSTER_ID).exists()  # an earlier release remembers the place where that was, too
    kept = file.read_text().strip() if file.exists() and not is_own else own
    if named not in ("", kept):
        raise InvalidError(f"the files of this cluster are in {kept}; name another --data-dir for bucket {named}")
    return kept


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # an account without a name
        return str(path.stat().st_uid)


def _own_catalog(settings: Settings, data_dir: Path) -> dict[str, str]:
    """Settings of a catalog in the data directory, unless one is configured."""
    if settings.tables_catalog_name:
        return {}
    folder = data_dir / "tables"
    _make_private(folder)
    return {
        "tables.catalog.name": "dev",
        "tables.catalog.uri": f"sqlite:///{folder}/catalog.db",
        "tables.warehouse": (folder / "warehouse").as_uri(),
    }


async def _refuse_foreign(settings: Settings, url: str) -> None:
    """InvalidError if the database has a cluster that keeps its files elsewhere."""
    in_metastore = await asyncio.to_thread(formatted_cluster_id, url)
    _, bucket = await look(msgspec.structs.replace(settings, metastore_url=url))
    if in_metastore is not None and bucket.cluster_id is None:
        raise InvalidError(
            f"the database has a cluster that keeps its files elsewhere: cluster_id={in_metastore}"
            f" here={bucket.address};"
            " name an empty database, or the --data-dir of that cluster"
        )


def _serve(settings: Settings, url: str, data_dir: Path, count: int, passed_on: dict[str, str]) -> int:
    if settings.bucket == (data_dir / OWN).as_uri():  # also after the directory was moved
        (data_dir / REMEMBERED).unlink(missing_ok=True)
    else:
        (data_dir / REMEMBERED).write_text(settings.bucket + "\n")
    values = proposed(settings)  # of a new cluster: an old one keeps what it has
    cluster_id = migrate(url, commit_shards=settings.commit_shards, values=values).cluster_id
    return asyncio.run(_supervise(settings, url, data_dir, cluster_id, count, passed_on))


async def _supervise(
    settings: Settings, url: str, data_dir: Path, cluster_id: str, count: int, passed_on: dict[str, str]
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if not settings.metastore_url:
        await _forget_dead_agents(url, settings)
    local = msgspec.structs.replace(settings, metastore_url=url)
    if not settings.metastore_url:
        await _follow_moved_bucket(local)
    await format_bucket(local, cluster_id)
    agents = [_agent(settings, index, url, passed_on) for index in range(count)]
    beside = [_tables(settings, url, passed_on)] if "tables.catalog.name" in passed_on else []
    try:
        async with asyncio.timeout(AGENT_START_SECONDS):
            ready = await asyncio.gather(*(agent.start() for agent in (*agents, *beside)))
        for line in ready:
            write(f"  {line}", flush=True)
        addresses = ",".join(agent.kafka_address for agent in agents)
        metastore = shown_address(url) if settings.metastore_url else url
        ready_line = f"ready bootstrap={addresses} metastore={metastore} bucket={settings.bucket}"
        steps = NEXT_STEPS.format(address=agents[0].kafka_address, addresses=addresses, data_dir=data_dir)
        write(f"{ready_line}\n{steps}", flush=True)  # in one write: a reader may go after the first line
        return await _watch([*agents, *beside], stopping)
    except TimeoutError as error:
        raise UnavailableError(
            f"an agent was not ready within {AGENT_START_SECONDS} s; see its log lines above"
        ) from error
    finally:
        await asyncio.gather(*(agent.stop() for agent in (*agents, *beside)))


def _agent(settings: Settings, index: int, url: str, passed_on: dict[str, str]) -> AgentProcess:
    own = {
        "process.roles": ",".join(sorted(roles(settings) | {COMPACTOR})),
        "metastore.url": settings.metastore_url or url,
        "bucket": settings.bucket,
        "node.id": str((1 if settings.node_id is None else settings.node_id) + index),
        "listeners": _listeners(settings, index, private="inter.broker.listener.name" in passed_on),
        "http.port": str(http_port(settings) + index if http_port(settings) else 0),
    }
    return AgentProcess(passed_on | own)


def _tables(settings: Settings, url: str, passed_on: dict[str, str]) -> AgentProcess:
    """The process that keeps the tables."""
    own = {
        "process.roles": TABLES,
        "metastore.url": settings.metastore_url or url,
        "bucket": settings.bucket,
        "http.port": "0",
    }
    names = ("config", "log.level", "tables.", *OF_BUCKETS)
    return AgentProcess({key: value for key, value in passed_on.items() if key.startswith(names)} | own)


def _listeners(settings: Settings, index: int, *, private: bool) -> str:
    """Return the value for agent `index`; `private`: with a listener for the other agents, at a free port."""
    found = listeners(settings)
    own = [moved(endpoint, index) for endpoint in (*found.serving, *([found.controller] if found.controller else []))]
    return listeners_text([*own, Endpoint(PRIVATE, own[0].host, 0)] if private else own)


async def _forget_dead_agents(url: str, settings: Settings) -> None:
    """No other process uses this metastore, so all registered agents belong to a previous run and have exited."""
    metastore = await PostgresMetastore.open(url, settings)
    try:
        for agent in (await load_image(metastore.cluster)).agents.values():
            await metastore.cluster.unregister_agent(agent.node_id, agent.broker_epoch)
    finally:
        await metastore.close()


async def _follow_moved_bucket(settings: Settings) -> None:
    """The data directory was moved or copied as a whole: its Postgres knows its bucket at the place where it was."""
    address = bucket_address(settings.bucket)
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        known = await metastore.life.known_bucket()
        if known is not None and known.address != address and await read_bucket_id(store) == known.bucket_id:
            await metastore.life.adopt_bucket(known, known._replace(address=address))
    finally:
        await metastore.close()
        await store.close()


async def _watch(agents: list[AgentProcess], stopping: asyncio.Event) -> int:
    stop = asyncio.create_task(stopping.wait())
    alive = {asyncio.create_task(agent.wait()): agent for agent in agents}
    while alive and not stop.done():
        done, _ = await asyncio.wait({stop, *alive}, return_when=asyncio.FIRST_COMPLETED)
        for task in done & alive.keys():
            agent = alive.pop(task)
            write_error(f"agent exited: kafka={agent.kafka_address} status={task.result()}")
    stop.cancel()
    for task in alive:
        task.cancel()
    return 0 if stopping.is_set() else 1
