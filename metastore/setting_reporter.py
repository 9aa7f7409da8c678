"""Reports what this process's file says about the cluster's settings, and warns where the cluster says otherwise.

Place: one task per process, with any roles: started before them by cli/process/shell.py, and by the Spark
application. It needs no metadata image.
Invariant: a process that runs and reaches the metastore has a report there; it is renewed every REPORT_SECONDS, taken
back when the process stops, and stops to count a minute after a crash. Warnings are given once per change, at most
REPORTS_PER_LOOK reports after it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import Gauge

from headrace.config.cluster_values import NEEDED_TO_DELETE, IgnoredSetting, ignored, proposed
from headrace.config.listeners import BROKER, COMPACTOR, CONTROLLER
from headrace.metastore.api.cluster import SettingProposals, SettingReport
from headrace.metastore.process_context import ProcessContext
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
REPORTS_PER_LOOK = 3
"""Reports from one look at what applies, which is for operators, to the next."""
SPARK = "spark"
"""The role of the Spark application, which is in no process.roles."""
LOOKS_TO_DECIDE = 4
"""Two minutes: by then an active controller has recorded what all agree on."""
_ROLES = (BROKER, CONTROLLER, COMPACTOR, SPARK)
NO_COMPACTOR = (
    "no running process has the role compactor, so no records expire, no files are merged and none are deleted:"
    " run `headrace compactor`, or add compactor to process.roles"
)


class SettingReporter:
    """`start`, and finally `stop`. `node_id`: of the agent in this process, None if there is none yet."""

    def __init__(
        self,
        context: ProcessContext,
        roles: Sequence[str],
        node_id: Callable[[], int | None] = lambda: None,
    ) -> None:
        settings, registry = context.settings, context.registry
        self._supervisor = context.supervisor
        self._api, self._settings, self._roles = context.metastore, settings, tuple(sorted(roles))
        self._clock, self.node_id = context.clock, node_id
        self._incarnation_id = uuid.UUID(int=context.rng.getrandbits(128), version=4)
        self._process = f"{socket.gethostname()}-{os.getpid()}"
        self._proposals = proposed(settings)
        self._task: asyncio.Task[None] | None = None
        self._warnings: tuple[str, ...] = ()
        self._looks_without_compactor = self._looks_without_values = 0
        self._ignored = Gauge(
            "headrace_setting_ignored",
            "1 for each setting of this process's file with another value in the cluster, which applies",
            ["name"],
            registry=registry,
        )
        self._disputed = Gauge(
            "headrace_setting_disputed",
            "1 for each setting without a value of the cluster, about which processes disagree: nothing is deleted by"
            " it",
            ["name"],
            registry=registry,
        )
        self._undecided = Gauge(
            "headrace_setting_undecided",
            "1 for each setting of deletion without a value of the cluster: nothing is deleted by it",
            ["name"],
            registry=registry,
        )
        self._running = Gauge(
            "headrace_running_processes", "Running processes of the cluster by role", ["role"], registry=registry
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should change, as of the last look; any thread may read it."""
        return self._warnings

    async def start(self) -> None:
        """Report once and look, then report every REPORT_SECONDS."""
        await self.report()
        await self._look()
        self._task = self._supervisor.keep("setting reports", self._repeat)

    async def stop(self) -> None:
        """Take the report back. Safe in any state."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._api.cluster.withdraw_settings(self._incarnation_id)
        except HeadraceError as error:
            logger.warning("cannot withdraw the report of settings, it expires instead: error=%s", error)

    async def report(self) -> None:
        """Renew the report. An error is logged: the next report tries again."""
        try:
            await self._api.cluster.report_settings(
                SettingReport(self._incarnation_id, self._process, self._roles, self.node_id(), self._proposals)
            )
        except HeadraceError as error:
            logger.warning("cannot report settings: error=%s", error)

    async def _look(self) -> None:
        try:
            self._show(await self._api.cluster.cluster_configs(), await self._api.cluster.setting_proposals())
        except HeadraceError as error:
            logger.warning("cannot look at what settings apply: error=%s", error)

    async def _repeat(self) -> None:
        for number in itertools.count(1):
            await self._clock.sleep(REPORT_SECONDS)
            await self.report()
            if number % REPORTS_PER_LOOK == 0:
                await self._look()

    def _show(self, values: Mapping[str, str], found: SettingProposals) -> None:
        own = ignored(self._settings, values)
        _show_names(self._ignored, [setting.name for setting in own])
        _show_names(self._disputed, list(found.disputed))
        undecided = [name for name in NEEDED_TO_DELETE if name not in values]
        _show_names(self._undecided, undecided)
        waiting = [name for name in undecided if name not in found.disputed]
        self._looks_without_values = self._looks_without_values + 1 if waiting else 0
        for role in _ROLES:
            self._running.labels(role).set(found.role_counts.get(role, 0))
        self._looks_without_compactor = 0 if found.role_counts.get(COMPACTOR) else self._looks_without_compactor + 1
        warnings = [
            *map(_ignored_warning, own),
            *(_disputed_warning(name, proposals) for name, proposals in found.disputed.items()),
            *([_undecided_warning(waiting, found)] if self._looks_without_values > LOOKS_TO_DECIDE else []),
            *([NO_COMPACTOR] if self._looks_without_compactor > 1 else []),  # it may start a moment later
        ]
        for warning in warnings:
            if warning not in self._warnings:
                logger.warning("%s", warning)
        self._warnings = tuple(warnings)


def _show_names(gauge: Gauge, names: Sequence[str]) -> None:
    """1 for these names, and no others."""
    gauge.clear()
    for name in names:
        gauge.labels(name).set(1)


def _ignored_warning(setting: IgnoredSetting) -> str:
    """What decides what is deleted gets no command with this file's value: the file may be the one that is wrong."""
    value = "..." if setting.name in NEEDED_TO_DELETE else setting.own
    return (
        f"setting of this process's file is ignored, the cluster has another value: setting={setting.name}"
        f" file={setting.own} cluster={setting.cluster}; remove it from the file, or change the cluster's with"
        f" `headrace configs set {setting.name}={value} --brokers`"
    )


def _undecided_warning(names: Sequence[str], found: SettingProposals) -> str:
    return (
        f"the cluster has no value of settings that decide what is deleted, so nothing is deleted by them:"
        f" settings={','.join(names)} controllers={found.role_counts.get(CONTROLLER, 0)}"
        f" agents_without_report={found.unreported_agents}; processes of an older version do not report: upgrade them,"
        f" or decide with `headrace configs set NAME=VALUE --brokers`"
    )


def _disputed_warning(name: str, proposals: Mapping[str, Sequence[str]]) -> str:
    shown = " ".join(f"{value}=[{','.join(processes)}]" for value, processes in sorted(proposals.items()))
    return (
        f"running processes have different values of a setting of the cluster, what needs it deletes nothing:"
        f" setting={name} {shown}; decide with `headrace configs set {name}=... --brokers`"
    )
