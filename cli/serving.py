"""A long-running process: compose it by its roles, start it, and stop it on a signal.

Place: under `headrace agent` and `headrace compactor`; handles the process's signals.
Invariant: SIGTERM drains (no acknowledged record is lost either way); a second signal ends the process at once.
The part that serves clients and the background work stop in parallel.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable

from prometheus_client import REGISTRY

from headrace.agent.controller_process import ControllerProcess
from headrace.agent.process import Agent
from headrace.cli.allocator_tuning import tune_allocator
from headrace.cli.compactor_process import CompactorProcess
from headrace.cli.worker_thread import WorkerThread
from headrace.config.errors import ConfigError
from headrace.config.listeners import BROKER, COMPACTOR, CONTROLLER, listeners, roles
from headrace.config.settings import Settings
from headrace.storage.collector_tuning import tune_collector


def serve(settings: Settings, open_agent: Callable[[Settings], Awaitable[Agent]] = Agent.open) -> int:
    """Serve until a signal arrives; 0 after a clean drain. `open_agent` makes the agent, if there is one."""
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')}); `headrace dev` needs neither")
    listeners(settings)  # refuses contradictory listeners before anything is opened
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    return asyncio.run(_serve(settings, open_agent))


async def _serve(settings: Settings, open_agent: Callable[[Settings], Awaitable[Agent]]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    front = await _open_front(settings, open_agent)
    worker = None
    try:
        await front.require_formatted_storage()
        await front.start()
        if COMPACTOR in roles(settings) and not isinstance(front, CompactorProcess):
            worker = WorkerThread(settings, REGISTRY)
            await worker.start()
        tune_allocator()
        tune_collector()
        print(front.ready_line(), flush=True)
        await stopping.wait()
    finally:
        await asyncio.gather(front.stop(), *([worker.stop()] if worker else []))
    return 0


async def _open_front(
    settings: Settings, open_agent: Callable[[Settings], Awaitable[Agent]]
) -> Agent | ControllerProcess | CompactorProcess:
    """The main component: an agent if the process has that role, else a controller, else background work only."""
    if BROKER in roles(settings):
        return await open_agent(settings)
    return await (ControllerProcess if CONTROLLER in roles(settings) else CompactorProcess).open(settings)


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        raise KeyboardInterrupt
    stopping.set()
