"""`headrace console`: pages about a running cluster, for people with a browser.

Place: a Kafka client, as the other tools; with metastore.url it also reads what only Postgres knows, and with bucket
its alarms say whether both belong together, and how old the backup of Postgres is. With tables.catalog.name, too, it
shows the Iceberg tables of topics.
Invariant: it reads only, unless --allow-changes is given. `--help` imports no service.
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from pathlib import Path

from headrace.cli.options import add_settings, settings_from
from headrace.cli.output import write
from headrace.config.errors import ConfigError
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import SystemClock

DEFAULT_LISTEN = "127.0.0.1:9646"
SHOWN = (
    "metastore.url",
    "bucket",
    "tables.catalog.name",
    "tables.catalog.uri",
    "http.ssl.keystore.location",
    "http.ssl.truststore.location",
    "http.bearer.token.location",
)
DESCRIPTION = """\
Show a running cluster in a browser: agents, topics, records, groups, clients, files, configs,
charts.

  headrace console -b 127.0.0.1:9092
  headrace console -b kafka:9092 --metastore-url postgresql://headrace@db/headrace \\
      --agent-http http://agent-1:9644,http://agent-2:9644

Prints one line with the word `ready` and the address of the first page. It changes nothing, unless
--allow-changes is given. It serves this machine only, unless http.bearer.token.location or
http.ssl.truststore.location says who else may read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--bootstrap-server",
        "-b",
        metavar="SERVERS",
        help="host:port pairs, comma-separated ($HEADRACE_BOOTSTRAP_SERVER)",
    )
    parser.add_argument("--command-config", type=Path, metavar="FILE", help="properties file of the admin client")
    parser.add_argument(
        "--agent-http",
        default="",
        metavar="URLS",
        help="URLs of the agents' HTTP listeners, comma-separated: for charts of bytes and commits, rates by client."
        " A name with several addresses, as of a headless service, is several agents",
    )
    parser.add_argument("--agent-http-token", type=Path, metavar="FILE", help="file with the bearer token for them")
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"address of the pages; port 0 picks a free one ({DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="offer to create, alter and delete topics, to reset offsets and to set quotas, each after a confirmation",
    )
    add_settings(parser, SHOWN, every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0."""
    from headrace.cli.console.server import ConsoleOptions, ConsoleServer  # here, so that --help imports no service

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    options = ConsoleOptions(
        client=client_config(args.bootstrap_server, args.command_config),
        settings=settings_from(args),
        listen=_address(args.listen),
        agent_urls=tuple(url.strip().rstrip("/") for url in args.agent_http.split(",") if url.strip()),
        agent_token=_agent_token(args.agent_http_token),
        allows_changes=args.allow_changes,
    )
    server = ConsoleServer(options, SystemClock())
    server.start()
    write(f"ready console={server.url}", flush=True)
    stopping.wait()
    server.stop()
    return 0


def _agent_token(file: Path | None) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() if file is not None else ""
    except OSError as error:
        raise ConfigError(f"--agent-http-token: {file}: {error.strerror}") from error


def _address(text: str) -> tuple[str, int]:
    """ConfigError if it is no address. Port 0 picks a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535 or not host:
        raise ConfigError(f"--listen: not a host and port: {text}")
    return host.strip("[]"), int(port)
