"""A long-running process: started, and stopped by a signal.

Place: under `headrace agent` and `headrace compactor`; owns the process's signals.
Invariant: SIGTERM drains (no acknowledged record is lost either way); a second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace import __version__
from headrace.agent.access.audit import open_audit_log
from headrace.agent.listener.sockets import connections_possible, raise_descriptor_limit
from headrace.cli.output import write
from headrace.cli.process.heap import tune_allocator
from headrace.cli.process.logs import FORMATTERS, LengthFilter, RepetitionFilter, Writer
from headrace.cli.process.open_process import open_process
from headrace.cli.process.shell import ProcessShell
from headrace.config.broker_configs import holds_secret
from headrace.config.cluster_values import setting_text, settings_that_go
from headrace.config.declared import declared
from headrace.config.errors import ConfigError
from headrace.config.listeners import listeners, roles
from headrace.config.memory_budget import over_container
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.supervision import end_tasks

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)
CGROUPS = Path("/sys/fs/cgroup")
LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Files of version 2 and of version 1, as they appear inside a container."""
NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


class OneOfSeveral:
    """Names the agent in its log lines: which process of the command, and its node id once it has one."""

    def __init__(self, index: int, count: int) -> None:
        """Agent `index` of `count`."""
        self._index, self.count = index, count
        self.node_id: Callable[[], int | None] = lambda: None

    def __call__(self) -> dict[str, int]:
        node_id = self.node_id()
        return {"process": self._index} if node_id is None else {"process": self._index, "node_id": node_id}


def serve(
    settings: Settings,
    opened: Callable[[Settings], Awaitable[ProcessShell]] = open_process,
    one_of: OneOfSeveral | None = None,
) -> int:
    """Serve until a signal arrives; 0 after a clean drain. `opened` makes the process."""
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')}); `headrace dev` needs neither")
    listeners(settings)  # refuses contradictory listeners before anything is opened
    open_log(settings, one_of or dict)
    _introduce(settings)
    if one_of is None:
        warn_of_settings_that_go(settings)
    _open_audit_log(settings.audit_log_path)
    _raise_descriptor_limit(settings)
    if warning := over_container(settings, container_limit_bytes(), 1 if one_of is None else one_of.count):
        logger.warning("%s", warning)
    tune_allocator()
    return asyncio.run(_serve(settings, opened, one_of))


def open_log(settings: Settings, writer: Writer = dict) -> None:
    """Log lines of this process go to stderr, in the format of `log.format`."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(FORMATTERS[settings.log_format](writer))
    lines.addFilter(LengthFilter())
    lines.addFilter(RepetitionFilter(SystemClock()))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[lines])


def _introduce(settings: Settings) -> None:
    """The first lines of a process: what it is, and its settings that differ from the defaults, without secrets."""
    logger.info(
        "process starts: version=%s roles=%s zone=%s node_id=%s",
        __version__,
        ",".join(sorted(roles(settings))),
        settings.broker_rack,
        settings.node_id,
    )
    for name, setting in sorted(declared().items()):
        value = getattr(settings, setting.field)
        if value != setting.default:
            text = setting_text(value)
            logger.info("setting: %s=%s", name, "(hidden)" if holds_secret(name, text) else text)


def warn_of_settings_that_go(settings: Settings) -> None:
    """One line for each that was set. Of several agents under one command, the command does it."""
    for each in settings_that_go(settings):
        logger.warning("%s", each)


def _open_audit_log(path: str) -> None:
    try:
        open_audit_log(path)
    except OSError as error:
        raise ConfigError(f"audit.log.path: cannot be written: {path}: {error.strerror}") from error


def _raise_descriptor_limit(settings: Settings) -> None:
    allowed = raise_descriptor_limit()
    possible = connections_possible(settings)
    if possible < settings.max_connections:
        logger.warning(
            "fewer connections than max.connections: possible=%d configured=%d; raise the limit of open files (%d)",
            possible,
            settings.max_connections,
            allowed,
        )


async def _serve(
    settings: Settings, opened: Callable[[Settings], Awaitable[ProcessShell]], one_of: OneOfSeveral | None
) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, _on_signal, stopping)
    try:
        return await _until_stopped(settings, opened, one_of, stopping)
    finally:
        await end_tasks()
        for number in SIGNALS:  # the loop closes what they write to before it takes them off: one more may come between
            loop.remove_signal_handler(number)


async def _until_stopped(
    settings: Settings,
    opened: Callable[[Settings], Awaitable[ProcessShell]],
    one_of: OneOfSeveral | None,
    stopping: asyncio.Event,
) -> int:
    opening = asyncio.ensure_future(_opened_and_formatted(settings, opened))
    ended = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((opening, ended), return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():  # it still waits for the metastore or the bucket
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return 0
    process = await opening
    if one_of is not None:
        one_of.node_id = process.node_id
    try:
        await process.start()
        tune_collector()
        write(process.ready_line(), flush=True)
        await ended
    finally:
        await process.stop()
    return 0


async def _opened_and_formatted(
    settings: Settings, opened: Callable[[Settings], Awaitable[ProcessShell]]
) -> ProcessShell:
    process = await opened(settings)
    try:
        await process.require_formatted_storage()
    except BaseException:  # also the signal that ends the wait
        await process.stop()
        raise
    return process


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        raise KeyboardInterrupt
    stopping.set()


def container_limit_bytes(cgroups: Path = CGROUPS) -> int | None:
    """Return the memory limit of the container, from Linux' control groups. None: there is none, or it is not known."""
    for file in LIMIT_FILES:
        try:
            text = (cgroups / file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None
    return None
