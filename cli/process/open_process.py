"""Composes a process, with the roles and connections that its settings name.

Place: under serve.py, and under benchmarks and tests that run an agent inside their process.
Invariant: only here the roles of one process get to know each other. A controller in the same process as a broker is
the same node as the broker and follows the same log. A process without the role compactor does not load its code.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence, Set
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.cluster.controller.rounds import HeldLease
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.produce.files import FileTrace
from headrace.agent.serve.broker import Broker
from headrace.agent.serve.controller_role import ControllerRole
from headrace.agent.serve.paths import PathObservers
from headrace.cli.process.http_app import NoPeers
from headrace.cli.process.shell import (
    Dependencies,
    MainRole,
    Member,
    ProcessShell,
    ProcessWatches,
    Role,
    until_available,
)
from headrace.cli.process.tracing import Tracing, open_tracing
from headrace.config.errors import ConfigError
from headrace.config.listeners import BROKER, COMPACTOR, CONTROLLER, TABLES, exposures, http_exposures, roles
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.own_bucket import learn_bucket
from headrace.metastore.life.watch import LifeWatch
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.setting_reporter import SettingReporter
from headrace.metastore.upkeep_watch import UpkeepWatch
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.measured import PutOutcomes
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)


async def open_process(
    settings: Settings,
    registry: CollectorRegistry = REGISTRY,
    decorate: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> ProcessShell:
    """The process of `process.roles`. ConfigError, and errors as PostgresMetastore.open and open_store.

    `decorate` makes the store that the roles use of the one that was opened: for benchmarks.
    """
    wanted = roles(settings)
    if wanted == {CONTROLLER} and settings.node_id is None:
        raise ConfigError("node.id is not set: a process that is only a controller cannot lease one")
    for line in http_exposures(settings) if wanted <= {COMPACTOR, TABLES} else exposures(settings):
        logger.warning("open to a network: %s", line)
    tracing = open_tracing(settings, SystemClock()) if settings.otel_enable and BROKER in wanted else None
    context = await _connect(settings, registry, decorate)
    try:
        return compose_process(context, bucket=settings.bucket, tracing=tracing)
    except BaseException:  # a port in use; with an open pool the event loop would not end
        await context.close()
        raise


async def open_agent(
    settings: Settings,
    on_settled: Callable[[FileTrace], None] = lambda trace: None,
    registry: CollectorRegistry = REGISTRY,
    decorate: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> tuple[ProcessShell, Broker]:
    """A process with a broker, and its broker: for benchmarks and tests that run it inside their own process."""
    context = await _connect(settings, registry, decorate)
    return compose_agent(context, bucket=settings.bucket, on_settled=on_settled)


def compose_process(context: ProcessContext, *, bucket: str = "", tracing: Tracing | None = None) -> ProcessShell:
    """Every role of `process.roles`: the member of the cluster first, then background work.

    `bucket`: the address of the store; empty: it is not recorded as the metastore's.
    """
    settings = context.settings
    wanted = roles(settings)
    if BROKER in wanted:
        return compose_agent(context, bucket=bucket, tracing=tracing)[0]
    life, held = _life(context, bucket), HeldLease(context.clock)
    if CONTROLLER in wanted:
        controller = ControllerRole(context, held)
        beside = _compactor_thread(context, life, lambda: settings.node_id, lambda: controller.image)
        return _shell(context, life, held, controller, [[controller], *beside])
    background = _background(context, wanted)
    return _shell(context, life, held, background[0], [[role] for role in background])


def _background(context: ProcessContext, wanted: Set[str]) -> list[MainRole]:
    """The roles of a process without clients; the first represents it."""
    from headrace.jobs.runner import JobMetrics

    found: list[MainRole] = []
    job_metrics = JobMetrics(context.clock, context.registry)
    if COMPACTOR in wanted:
        from headrace.cli.process.compactor_role import CompactorRole
        from headrace.compactor.worker import Worker

        found.append(CompactorRole(Worker(context, job_metrics)))
    if TABLES in wanted:
        from headrace.cli.process.tables_role import TablesRole

        found.append(TablesRole(context, job_metrics))
    return found


def compose_agent(
    context: ProcessContext,
    *,
    bucket: str = "",
    tracing: Tracing | None = None,
    on_settled: Callable[[FileTrace], None] = lambda trace: None,
) -> tuple[ProcessShell, Broker]:
    """A broker, and the other roles of `process.roles` next to it."""
    observers = PathObservers(on_settled=on_settled)
    if tracing is not None:
        observers = PathObservers(produce=tracing.produce, fetch=tracing.fetch, on_settled=on_settled)
    held, health = HeldLease(context.clock), HeartbeatHealth(context.clock)
    dependencies = Dependencies(context, health.failure)
    broker = Broker(
        context,
        health=health,
        is_active_controller=held.is_active,
        reached_here=dependencies.reached,
        observers=observers,
    )
    member: list[Role] = [broker] if tracing is None else [tracing, broker]
    if CONTROLLER in roles(context.settings):
        member.append(ControllerRole(context, held, broker))
    life = _life(context, bucket)
    members = [member, *_compactor_thread(context, life, lambda: broker.node_id, lambda: broker.image)]
    watches = ProcessWatches(
        dependencies,
        LifeWatch(life, context.clock, context.registry, held.is_active, broker.life_changed),
        SettingReporter(context, sorted(roles(context.settings)), lambda: broker.node_id),
        _upkeep(context, held),
    )
    return ProcessShell(context, broker, members, watches, broker), broker


def _shell(
    context: ProcessContext, life: LifeKeeper, held: HeldLease, main: MainRole, members: Sequence[Sequence[Role]]
) -> ProcessShell:
    """A process that no client of the cluster connects to."""
    watches = ProcessWatches(
        Dependencies(context, own_failure=lambda: None),
        LifeWatch(life, context.clock, context.registry, held.is_active),
        SettingReporter(context, sorted(roles(context.settings))),
        _upkeep(context, held),
    )
    return ProcessShell(context, main, members, watches, NoPeers())


def _life(context: ProcessContext, bucket: str) -> LifeKeeper:
    """The process's only one."""
    api, store, rng = context.metastore.life, context.store, context.rng
    learn = partial(learn_bucket, api, store, bucket, rng) if bucket else None
    return LifeKeeper(api, store, context.clock, rng, learn_bucket=learn)


def _upkeep(context: ProcessContext, held: HeldLease) -> UpkeepWatch:
    delay_ms = context.settings.file_delete_delay_ms
    return UpkeepWatch(context.metastore, context.store, delay_ms, held.is_active, context.clock, context.registry)


def _compactor_thread(
    context: ProcessContext,
    life: LifeKeeper,
    node_id: Callable[[], int | None],
    image: Callable[[], MetadataImage | None],
) -> list[Member]:
    """Return the compactor's thread as a separate member; none in a process without the role compactor."""
    if COMPACTOR not in roles(context.settings):
        return []
    from headrace.cli.process.compactor_role import WorkerThread

    return [[WorkerThread(context, life, node_id, image)]]


def _with_own_pool(settings: Settings) -> Settings:
    """A worker without clients in its process works on the process's connections."""
    wanted = roles(settings)
    if COMPACTOR not in wanted or not wanted <= {COMPACTOR, TABLES}:
        return settings
    from headrace.compactor.worker import with_worker_pool

    return with_worker_pool(settings)


async def _connect(
    settings: Settings, registry: CollectorRegistry, decorate: Callable[[ObjectStore], ObjectStore]
) -> ProcessContext:
    clock, rng = SystemClock(), random.Random()
    bucket = decorate(open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng))
    metastore = await open_metastore(_with_own_pool(settings), clock)
    return ProcessContext(
        settings=settings,
        store=PutOutcomes(InlineStore(bucket, metastore.inline), clock),
        metastore=metastore,
        clock=clock,
        rng=rng,
        registry=registry,
        supervisor=Supervisor(clock, registry),
    )


async def open_metastore(settings: Settings, clock: Clock) -> Metastore:
    """Connect to Postgres, waiting for it at most initial.broker.registration.timeout.ms.

    Every role waits: a compactor that starts while Postgres is away must not exit. Errors as
    PostgresMetastore.open.
    """
    return await until_available(
        "metastore", lambda: PostgresMetastore.open(settings.metastore_url, settings), settings, clock
    )
