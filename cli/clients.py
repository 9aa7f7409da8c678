"""`headrace clients`: which users and client ids send and get most.

Place: reads the agents' /metrics twice (cli/console/agent_metrics.py), so it needs their HTTP addresses and no rights
in the cluster; docs/operate/QUOTAS.md goes from here to a quota.
Invariant: it reads only. An agent that does not answer is named on standard error, and the exit status is 1: sums
without it would be wrong.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from headrace.cli.console.agent_metrics import (
    OTHERS,
    AgentPages,
    ClientUse,
    Pair,
    client_rates,
    heaviest_first,
    shown_pair,
)
from headrace.cli.options import INT32_MAX, whole
from headrace.cli.output import write_error
from headrace.cli.tables import Row, show
from headrace.config.errors import ConfigError
from headrace.storage.clock import Clock, SystemClock

DESCRIPTION = """\
Show which users and client ids send and get most: requests, bytes and records per second, of all agents that
--agent-http names. No quota has to be set. Those with the most bytes come first.

  headrace clients --agent-http http://agents:9644
  headrace clients --agent-http http://agent-1:9644,http://agent-2:9644 --sort requests --limit 5 --json
  headrace quotas alter --user billing --client-id loader --set producer_byte_rate=1048576 -b kafka:9092

An agent names the client.metrics.max pairs that use most; the last line is the sum of all others. To limit one, set a
quota for its user, its client id, or both, as in the last line above.
"""
SECONDS, SECONDS_MAX, LIMIT = 5.0, 3_600.0, 20
COLUMNS = ("user", "client_id", "requests", "received_bytes", "received_records", "sent_bytes")
SORTS = {name: index for index, name in enumerate(ClientUse._fields)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--agent-http", required=True, metavar="URLS", help="URLs of the agents' HTTP listeners, comma-separated"
    )
    parser.add_argument("--agent-http-token", type=Path, metavar="FILE", help="file with the bearer token for them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"between two looks ({SECONDS:g})")
    parser.add_argument("--sort", choices=tuple(SORTS), help="what to sort by, per second; default: bytes in and out")
    parser.add_argument("--limit", type=whole(1, INT32_MAX), default=LIMIT, help=f"most pairs to show ({LIMIT})")
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the pairs; 1 if an agent did not answer, or counts nothing."""
    if not 0 < args.seconds <= SECONDS_MAX:
        raise ConfigError(f"--seconds: not above 0 and at most {SECONDS_MAX:g}")
    urls = tuple(url.strip().rstrip("/") for url in args.agent_http.split(",") if url.strip())
    rates, failures = rates_of(AgentPages(urls, _token(args.agent_http_token)), args.seconds, SystemClock())
    for line in failures:
        write_error(f"error: {line}")
    rows = heaviest_first(rates)
    if args.sort is not None:
        rows.sort(key=lambda each: (each[0] == OTHERS, -each[1][SORTS[args.sort]]))
    named = [each for each in rows if each[0] != OTHERS]
    left_out = rows[len(named) :] if len(named) <= args.limit else [(OTHERS, _rest(rows[args.limit :]))]
    show(args, [_row(pair, use) for pair, use in (*named[: args.limit], *left_out)], COLUMNS)
    return 1 if failures else 0


def _token(file: Path | None) -> str:
    """Return the token in the file. ConfigError if it cannot be read."""
    try:
        return "" if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--agent-http-token: {file}: {error}") from error


def rates_of(pages: AgentPages, seconds: float, clock: Clock) -> tuple[dict[Pair, ClientUse], list[str]]:
    """Return the uses per second, and a line for each agent without them."""
    before, failures = pages.read()
    began = clock.monotonic()
    asyncio.run(clock.sleep(seconds))
    after, more = pages.read()
    elapsed = clock.monotonic() - began
    for address, counters in after.items():
        if not counters.by_client:
            more.append(
                f"{address}: counts nothing by client: client.metrics.max is 0, or it is no agent of this version"
            )
    both = [(before[agent].by_client, now.by_client) for agent, now in after.items() if agent in before]
    return client_rates(both, elapsed), list(dict.fromkeys([*failures, *more]))


def _rest(rows: list[tuple[Pair, ClientUse]]) -> ClientUse:
    return ClientUse(*map(sum, zip(*(use for _, use in rows), strict=True)))


def _row(pair: Pair, use: ClientUse) -> Row:
    """Numbers per second, as whole ones; `others` says in JSON that it is the sum of all others."""
    user, client_id = shown_pair(pair)
    rates = {name: round(value) for name, value in use._asdict().items()}
    return {"user": user, "client_id": client_id, **rates, "others": pair == OTHERS}
