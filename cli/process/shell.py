"""One process: its connections, its HTTP server, and the order in which roles start and stop.

Place: made by open_process.py, run by serve.py; benchmarks and tests run it inside their process.
Invariant: roles start one after another. They stop by member: all roles of a member drain, then they close in the
reverse order of their start. Members stop at the same time: serving clients and background work share nothing.
Connections close last.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.limit_metrics import limits_reached
from headrace.cli.process.http_app import make_app
from headrace.cli.process.http_connection import bounded
from headrace.cli.process.http_server import HttpServer, ask
from headrace.cli.process.role import MainRole, Role
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.watch import LifeWatch
from headrace.metastore.setting_reporter import SettingReporter
from headrace.storage.cluster_properties import require_formatted
from headrace.storage.errors import HeadraceError, NotFoundError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

Member = Sequence[Role]
"""Roles that stop together, in the order of their start."""


class ProcessShell:
    """`start`, and finally `stop`. `main` is one of the roles of `members`."""

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        metastore: Metastore,
        registry: CollectorRegistry,
        life: LifeWatch,
        main: MainRole,
        members: Sequence[Member],
        reporter: SettingReporter,
    ) -> None:
        self._settings, self._store, self._metastore, self._life = settings, store, metastore, life
        self._main, self._members, self._reporter = main, members, reporter
        self._roles = list(itertools.chain.from_iterable(members))
        self._loop = asyncio.get_running_loop()
        self._http = HttpServer(
            make_app(self, registry),
            settings.http_host,
            settings.http_port,
            bounded(settings.http_max_connections, limits_reached(registry)),
        )

    async def require_formatted_storage(self) -> None:
        """InvalidError, with instructions, unless bucket and metastore were formatted as the same cluster."""
        await require_formatted(self._store, self._metastore.cluster_id)

    async def start(self) -> None:
        """Start every role. Raises the error that prevented it."""
        self._http.start()
        await self._life.start()
        await self._reporter.start()
        for role in self._roles:
            await role.start()
        await self._reporter.report()  # an agent has its node id now
        logger.info("%s started: %s", self._main.title, self.ready_line())

    async def stop(self) -> None:
        """Drain and stop every role. Safe in any state, also after a failed start."""
        await asyncio.gather(*map(self._stop, self._members))
        await self._reporter.stop()
        await self._life.stop()
        await asyncio.to_thread(self._http.stop)
        await self._metastore.close()
        await self._store.close()

    async def _stop(self, member: Member) -> None:
        grace = self._settings.shutdown_grace_ms / 1000
        await asyncio.gather(*(role.drain(grace) for role in member))
        for role in reversed(member):
            await role.close(grace)

    def ready_line(self) -> str:
        """The line that the command prints when it is ready."""
        return f"ready {self._main.ready_fields()} http={self._settings.http_host}:{self._http.port}"

    # -- http_app.Probe, called on the HTTP loop

    async def not_ready_reason(self) -> str | None:
        """None if this process can take work."""
        return await ask(self._loop, self._not_ready_reason())

    async def status(self) -> dict[str, Any]:
        """The main role's status, for people."""
        return await ask(self._loop, self._main.status())

    def warnings(self) -> Sequence[str]:
        """What an operator should change; the process works nevertheless."""
        return self._reporter.warnings

    async def _not_ready_reason(self) -> str | None:
        if (over := self._life.not_ready_reason()) is not None:
            return over
        for role in self._roles:
            if (reason := role.not_ready_reason()) is not None:
                return reason
        try:
            await self._metastore.metadata_head()
        except HeadraceError as error:
            return f"metastore: {error}"
        if not any(role.needs_bucket for role in self._roles):
            return None
        try:
            await self._store.head("readiness-probe")
        except NotFoundError:
            return None
        except HeadraceError as error:
            return f"bucket: {error}"
        return None
