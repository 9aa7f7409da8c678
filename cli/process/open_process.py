"""Open a process from its settings: connections opened, roles made.

Place: under serve.py, and under benchmarks and tests that run an agent inside their process.
Invariant: only here the roles of one process get to know each other. A controller in the same process as a broker is
the same node as the broker and follows the same log. A process without the role compactor does not load its code.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.fetch.steps import UNTRACED
from headrace.agent.produce.trace import FileTrace
from headrace.agent.serve.broker import Broker
from headrace.agent.serve.controller.controller_role import ControllerRole
from headrace.cli.process.readiness import NoPeers
from headrace.cli.process.role import MainRole, Role
from headrace.cli.process.shell import ProcessShell
from headrace.cli.process.tracing import Tracing, open_tracing
from headrace.cli.process.waiting import until_available
from headrace.config.errors import ConfigError
from headrace.config.exposure import exposures, http_exposures
from headrace.config.listeners import BROKER, COMPACTOR, CONTROLLER, TABLES, roles
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.own_bucket import learn_bucket
from headrace.metastore.life.watch import LifeWatch
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.setting_reporter import SettingReporter
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.put_outcomes import PutOutcomes
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connections:
    """What the roles of a process share."""

    store: ObjectStore
    metastore: Metastore
    clock: Clock
    rng: random.Random
    registry: CollectorRegistry
    tracing: Tracing | None = None
    """None: nothing is traced."""
    supervisor: Supervisor | None = None
    """The supervisor of all background work of the process; None: each role has a separate one."""
    bucket: str = ""
    """The address of the store; empty: it is not recorded as the metastore's."""

    def life(self) -> LifeKeeper:
        """The process's only one."""
        learn = partial(learn_bucket, self.metastore.life, self.store, self.bucket, self.rng) if self.bucket else None
        return LifeKeeper(self.metastore.life, self.store, self.clock, self.rng, learn_bucket=learn)

    async def close(self) -> None:
        """Only for a process that was not composed: the shell closes them."""
        await self.metastore.close()
        await self.store.close()


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
    shared = await _connect(_with_own_pool(settings, wanted), registry, decorate)
    try:
        return compose_process(settings, shared)
    except BaseException:  # a port in use; with an open pool the event loop would not end
        await shared.close()
        raise


async def open_agent(
    settings: Settings,
    on_settled: Callable[[FileTrace], None] = lambda trace: None,
    registry: CollectorRegistry = REGISTRY,
    decorate: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> tuple[ProcessShell, Broker]:
    """A process with a broker, and its broker: for benchmarks and tests that run it inside their own process."""
    return compose_agent(settings, await _connect(settings, registry, decorate), on_settled)


def compose_process(settings: Settings, shared: Connections) -> ProcessShell:
    """Every role of `process.roles`: the member of the cluster first, then background work."""
    wanted = roles(settings)
    if BROKER in wanted:
        return compose_agent(settings, shared)[0]
    life = shared.life()
    if CONTROLLER in wanted:
        controller = ControllerRole(
            settings, shared.metastore, shared.clock, shared.rng, shared.registry, supervisor=shared.supervisor
        )
        beside = _next_to(settings, shared, life, lambda: settings.node_id, lambda: controller.image)
        members: list[list[Role]] = [[controller], *beside]
        return _shell(settings, shared, life, controller, members, lambda: controller.is_active)
    background = _background(settings, shared, wanted)
    return _shell(settings, shared, life, background[0], [[role] for role in background], _never)


def _background(settings: Settings, shared: Connections, wanted: Set[str]) -> list[MainRole]:
    """The roles of a process without clients; the first represents it."""
    from headrace.jobs.metrics import JobMetrics

    found: list[MainRole] = []
    job_metrics = JobMetrics(shared.clock, shared.registry)
    if COMPACTOR in wanted:
        from headrace.cli.process.compactor_role import CompactorRole
        from headrace.compactor.worker import Worker

        worker = Worker(
            settings,
            shared.store,
            shared.metastore,
            shared.clock,
            shared.rng,
            shared.registry,
            supervisor=shared.supervisor,
            job_metrics=job_metrics,
        )
        found.append(CompactorRole(worker))
    if TABLES in wanted:
        from headrace.cli.process.tables_role import TablesRole

        found.append(TablesRole(settings, shared, job_metrics))
    return found


def compose_agent(
    settings: Settings, shared: Connections, on_settled: Callable[[FileTrace], None] = lambda trace: None
) -> tuple[ProcessShell, Broker]:
    """A broker, and the other roles of `process.roles` next to it."""
    tracing = shared.tracing
    broker = Broker(
        settings,
        shared.store,
        shared.metastore,
        shared.clock,
        shared.rng,
        shared.registry,
        on_settled,
        observer=None if tracing is None else tracing.produce,
        fetch_steps=UNTRACED if tracing is None else tracing.fetch,
        supervisor=shared.supervisor,
    )
    member: list[Role] = [broker] if tracing is None else [tracing, broker]
    is_active: Callable[[], bool] = _never
    if CONTROLLER in roles(settings):
        controller = ControllerRole(
            settings, shared.metastore, shared.clock, shared.rng, shared.registry, broker, shared.supervisor
        )
        broker.is_active_controller = is_active = lambda: controller.is_active
        member.append(controller)
    life = shared.life()
    members = [member, *_next_to(settings, shared, life, lambda: broker.node_id, lambda: broker.image)]
    return _shell(settings, shared, life, broker, members, is_active, broker), broker


def _next_to(
    settings: Settings,
    shared: Connections,
    life: LifeKeeper,
    node_id: Callable[[], int | None],
    image: Callable[[], MetadataImage | None],
) -> list[list[Role]]:
    """Background work next to other roles."""
    if COMPACTOR not in roles(settings):
        return []
    from headrace.cli.process.worker_thread import WorkerThread

    return [[WorkerThread(settings, shared.registry, life, node_id, image, shared.supervisor)]]


def _with_own_pool(settings: Settings, wanted: Set[str]) -> Settings:
    """A worker without clients in its process works on the process's connections."""
    if COMPACTOR not in wanted or not wanted <= {COMPACTOR, TABLES}:
        return settings
    from headrace.compactor.worker import with_worker_pool

    return with_worker_pool(settings)


def _shell(
    settings: Settings,
    shared: Connections,
    life: LifeKeeper,
    main: MainRole,
    members: Sequence[Sequence[Role]],
    is_active_controller: Callable[[], bool],
    broker: Broker | None = None,
) -> ProcessShell:
    watch = LifeWatch(life, shared.clock, shared.registry, notes_position=is_active_controller)
    if broker is not None:
        watch.on_change = broker.in_life
    reporter = SettingReporter(
        shared.metastore,
        settings,
        sorted(roles(settings)),
        shared.clock,
        shared.rng,
        shared.registry,
        lambda: None if broker is None else broker.node_id,
        shared.supervisor,
    )
    shell = ProcessShell(
        settings,
        shared.store,
        shared.metastore,
        shared.registry,
        watch,
        main,
        members,
        reporter,
        shared.clock,
        NoPeers() if broker is None else broker,
        shared.supervisor,
        is_active_controller,
        heartbeat_failure=_no_failure if broker is None else broker.heartbeat_failure,
    )
    if broker is not None:
        broker.reached_here = shell.reached
    return shell


def _never() -> bool:
    return False


def _no_failure() -> None:
    return None


async def _connect(
    settings: Settings, registry: CollectorRegistry, decorate: Callable[[ObjectStore], ObjectStore]
) -> Connections:
    clock, rng = SystemClock(), random.Random()
    tracing = open_tracing(settings, clock) if settings.otel_enable and BROKER in roles(settings) else None
    store = PutOutcomes(decorate(open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)), clock)
    metastore = await open_metastore(settings, clock)
    return Connections(store, metastore, clock, rng, registry, tracing, Supervisor(clock, registry), settings.bucket)


async def open_metastore(settings: Settings, clock: Clock) -> Metastore:
    """Connect to Postgres, waiting for it at most initial.broker.registration.timeout.ms.

    Every role waits: a compactor that starts while Postgres is away must not exit. Errors as
    PostgresMetastore.open.
    """
    return await until_available(
        "metastore", lambda: PostgresMetastore.open(settings.metastore_url, settings), settings, clock
    )
