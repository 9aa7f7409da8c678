"""`headrace agent`: one stateless agent in the foreground.

Place: composes store, metastore and agent, and owns the process's signals.
Invariant: SIGTERM drains (no acknowledged record is lost either way); a second signal ends at once.
If the process dies here, clients move to the other agents and repeat what was not acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Any

from agent.controller_process import ControllerProcess
from agent.process import Agent
from cli.collector_tuning import tune_collector
from cli.options import add_settings, settings_from
from config.listeners import BROKER, COMPACTOR, listeners, roles
from config.load import ConfigError
from config.settings import Settings

SHOWN = (
    "metastore.url",
    "bucket",
    "s3.endpoint",
    "kafka.port",
    "http.port",
    "advertised.host",
    "broker.rack",
    "linger.ms",
    "log.level",
)
DESCRIPTION = """\
Run one stateless agent. Start as many as you like on the same metastore and bucket, behind a load
balancer or not: each serves every topic.

  headrace storage format -t $(headrace storage random-uuid) \
      --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace
  headrace agent --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace

It prints one line with the word `ready` and its addresses once clients can connect. SIGTERM drains.
"""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "agent",
        help="run one agent",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a clean drain."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')}); `headrace dev` needs neither")
    listeners(settings)  # refuses what does not fit together before anything is opened
    if COMPACTOR in roles(settings):
        raise ConfigError("process.roles: compactor is not part of this version")
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    return asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    agent = await (Agent if BROKER in roles(settings) else ControllerProcess).open(settings)
    try:
        await agent.require_formatted_storage()
        await agent.start()
        tune_collector()
        print(agent.ready_line(), flush=True)
        await stopping.wait()
    finally:
        await agent.stop()
    return 0


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        raise KeyboardInterrupt
    stopping.set()
