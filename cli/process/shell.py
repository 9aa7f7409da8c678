"""One process: what it depends on, its HTTP server, the order in which roles start or stop.

Place: made by open_process.py, run by serve.py; benchmarks and tests run it inside their process.
agent/serve/broker.py, agent/serve/controller_role.py and compactor_role.py implement roles.
open_process.py makes the dependencies before the roles, as an agent reports to others what its process reaches.
Invariant of dependencies: the bucket counts as answering only if it can be read and written
(storage/objects/measured.py).
Invariant of the wait at the start: only what certainly did nothing is tried again; the wait ends after
initial.broker.registration.timeout.ms.
Invariant of a role: a role closes no connection that it was given. `drain` and `close` are safe in any state, also
after a failed `start`.
Invariant: roles start one after another. They stop by member: all roles of a member drain, then they close in the
reverse order of their start. Members stop at the same time: serving clients and background work share nothing.
Connections close last.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.agent.limits.metrics import limits_reached, watch_memory
from headrace.cli.process.heap import IdleHeap
from headrace.cli.process.http_app import Part, PeerReports, Readiness, make_app
from headrace.cli.process.http_security import HttpSecurity
from headrace.cli.process.http_server import HttpServer, ask, bounded
from headrace.config.addresses import address_text
from headrace.config.listeners import http_port
from headrace.config.settings import Settings
from headrace.metastore.life.own_bucket import require_bucket, require_files
from headrace.metastore.life.watch import LifeWatch
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.setting_reporter import SettingReporter
from headrace.metastore.upkeep_watch import UpkeepWatch
from headrace.storage.clock import Clock
from headrace.storage.dependency import BUCKET, METASTORE, DependencyWatch, NotReady
from headrace.storage.errors import NotFoundError, RetryableError
from headrace.storage.objects.measured import PROBE_KEY, PutOutcomes

METASTORE_PROBE_SECONDS, BUCKET_PROBE_SECONDS = 2.0, 5.0
"""Pauses between readiness probes: a cheap query and a commit, a GET, and a small PUT when it is due."""


class Dependencies:
    """The dependencies of one process."""

    def __init__(self, context: ProcessContext, own_failure: Callable[[], str | None]) -> None:
        """`own_failure`: why the heartbeats of the process's agent fail, although probes may be answered."""
        store, metastore, clock = context.store, context.metastore, context.clock
        self._puts = store if isinstance(store, PutOutcomes) else PutOutcomes(store, clock)
        self.metastore = DependencyWatch(
            METASTORE,
            probe=metastore.probe_commit,
            interval_seconds=METASTORE_PROBE_SECONDS,
            clock=clock,
            writes_so_far=metastore.commits_made,
            refusal=metastore.refusal,
            own_failure=own_failure,
        )
        self.bucket = DependencyWatch(BUCKET, self._probe_bucket, BUCKET_PROBE_SECONDS, clock)

    def reached(self) -> frozenset[str]:
        """The dependencies that answer this process: what it reports to other agents. The next question, a second
        later, gets what a new look found.
        """
        watches = (self.metastore, self.bucket)
        for watch in watches:
            watch.look_again()
        return frozenset(watch.name for watch in watches if watch.answers)

    async def _probe_bucket(self) -> None:
        with contextlib.suppress(NotFoundError):
            await self._puts.get(PROBE_KEY)  # as readers do; a HEAD needs fewer rights
        await self._puts.probe()


logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 2.0
"""The pause between two attempts."""


async def until_available(what: str, attempt: Callable[[], Awaitable[T]], settings: Settings, clock: Clock) -> T:
    """The result of `attempt`, repeated while `what` is not available. Errors as `attempt`, in the end also of that."""
    give_up_at = clock.monotonic() + settings.initial_broker_registration_timeout_ms / 1000
    while True:
        try:
            return await attempt()
        except RetryableError as error:
            if clock.monotonic() + RETRY_SECONDS >= give_up_at:
                raise
            logger.warning(
                "%s not available, trying again: seconds_left=%.0f (initial.broker.registration.timeout.ms) error=%s",
                what,
                give_up_at - clock.monotonic(),
                error,
            )
            await clock.sleep(RETRY_SECONDS)


class Role(Protocol):
    """Broker, controller or compactor. All methods but `not_ready` run on the process's main loop."""

    title: str
    """What log lines and /readyz call it."""
    needs_bucket: bool
    """Whether the process is ready only while the bucket answers."""

    async def start(self) -> None:
        """Begin to work. Raises the error that prevented it."""

    async def drain(self, grace_seconds: float) -> None:
        """Finish the work in progress, within the grace period; the other roles still run."""

    async def close(self, grace_seconds: float) -> None:
        """Leave and stop, once every role of the same member is drained."""

    def not_ready(self) -> NotReady | None:
        """Return None while it can take work, as far as it knows itself. Runs on the HTTP thread: reads known state
        only.
        """


class MainRole(Role, Protocol):
    """The role that represents its process: broker, else controller, else compactor."""

    def ready_fields(self) -> str:
        """Its part of the line that the command prints when it is ready."""

    async def status(self) -> dict[str, Any]:
        """The page /v1/status: for people."""


Member = Sequence[Role]
"""Roles that stop together, in the order of their start."""


@dataclass(frozen=True, slots=True)
class ProcessWatches:
    """What a process watches from its start to its end."""

    dependencies: Dependencies
    life: LifeWatch
    reporter: SettingReporter
    upkeep: UpkeepWatch


class ProcessShell:
    """`start`, and finally `stop`. `main` is one of the roles of `members`."""

    def __init__(
        self,
        context: ProcessContext,
        main: MainRole,
        members: Sequence[Member],
        watches: ProcessWatches,
        peers: PeerReports,
    ) -> None:
        """`peers`: what the other agents report while metastore or bucket fail here."""
        settings, clock, registry = context.settings, context.clock, context.registry
        self._supervisor, self._clock = context.supervisor, clock
        self._settings, self._store, self._metastore = settings, context.store, context.metastore
        self._main, self._members = main, members
        self._life, self._reporter, self._upkeep = watches.life, watches.reporter, watches.upkeep
        self._roles = list(itertools.chain.from_iterable(members))
        self._loop = asyncio.get_running_loop()
        watched = [watches.dependencies.metastore]
        if any(role.needs_bucket for role in self._roles):
            watched.append(watches.dependencies.bucket)
        self._readiness = Readiness(watched, self._own_parts, peers, clock, registry, self._supervisor)
        self._idle_heap = IdleHeap(clock)
        in_use = {"allocator": lambda: self._idle_heap.idle_bytes}
        watch_memory(settings, in_use, registry)
        self._watching: list[asyncio.Task[None]] = []
        security = HttpSecurity(settings, clock)
        connection = bounded(settings.http_max_connections, limits_reached(registry))
        self._http = HttpServer(
            security.guarded(make_app(self, registry)),
            settings.http_host,
            http_port(settings),
            security.encrypted(connection),
        )

    async def require_formatted_storage(self) -> None:
        """InvalidError, with instructions, unless the bucket is the metastore's and has its newest files.

        Waits for the bucket as open_metastore does for Postgres.
        """
        await until_available("bucket", self._require_bucket, self._settings, self._clock)

    async def _require_bucket(self) -> None:
        await require_bucket(self._metastore.life, self._store, self._settings.bucket)
        await require_files(self._metastore.life, self._store)

    async def start(self) -> None:
        """Start every role. Raises the error that prevented it."""
        self._http.start()
        self._readiness.start()
        await until_available("bucket or metastore", self._life.start, self._settings, self._clock)
        await self._reporter.start()
        loops = {"upkeep": self._upkeep.run, "idle memory": self._idle_heap.run}
        self._watching = [self._supervisor.keep(name, loop) for name, loop in loops.items()]
        for role in self._roles:
            await role.start()
        await self._reporter.report()  # an agent has its node id now
        logger.info("%s started: %s", self._main.title, self.ready_line())

    async def stop(self) -> None:
        """Drain and stop every role. Safe in any state, also after a failed start."""
        await asyncio.gather(*map(self._stop, self._members))
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._reporter.stop()
        await self._life.stop()
        await self._readiness.stop()
        await asyncio.to_thread(self._http.stop)
        await self._metastore.close()
        await self._store.close()

    async def _stop(self, member: Member) -> None:
        grace = self._settings.shutdown_grace_ms / 1000
        await asyncio.gather(*(role.drain(grace) for role in member))
        for role in reversed(member):
            await role.close(grace)

    def node_id(self) -> int | None:
        """Return the node id of the agent in this process; None if there is none, or before it has registered."""
        return self._reporter.node_id()

    def ready_line(self) -> str:
        """The line that the command prints when it is ready."""
        return f"ready {self._main.ready_fields()} http={address_text(self._settings.http_host, self._http.port)}"

    # -- http_app.Probe, called on the HTTP loop

    def parts(self) -> Sequence[Part]:
        """Return whether this process should get connections, part by part."""
        return self._readiness.parts()

    async def status(self) -> dict[str, Any]:
        """The main role's status, for people."""
        return await ask(self._loop, self._main.status())

    def warnings(self) -> Sequence[str]:
        """Return what an operator should change; the process works nevertheless."""
        return (*self._reporter.warnings, *self._upkeep.warnings)

    def _own_parts(self) -> Iterator[Part]:
        over = self._life.not_ready_reason()
        yield Part("metastore life", over is None, over or "")
        for role in self._roles:
            found = role.not_ready()
            yield Part(role.title, True) if found is None else Part(role.title, False, *found)
        failing = self._supervisor.problems()  # clients are served all the same
        yield Part("background work", True, "; ".join(f"{work}: {why}" for work, why in failing.items()))
