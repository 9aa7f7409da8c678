"""`make torture SECONDS=60`: run, print the counts, exit 1 when a record was lost, doubled or out of order."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.tools import why_missing as why_missing_tool
from tests.torture.drills import DRILLS
from tests.torture.faults import BUCKET_FAULTS, GAP_MEAN_S, KINDS, STEADY_KINDS
from tests.torture.kills.report import print_kills
from tests.torture.kills.run import HEADRACE, TARGETS, KillsPlan, run_with_kills
from tests.torture.report import print_outcome
from tests.torture.run import TorturePlan, torture
from tests.torture.run_directory import RunDirectory
from tests.torture.servers import NEEDS, STORES
from tests.torture.small_disk import why_missing
from tests.torture.writers import DELIVERY_MS, installed

RATE = 250
LONG_RUN_SECONDS = 300
"""Length in seconds from which on a run has every fault."""


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of faults")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule of faults; drawn when not given")
    parser.add_argument("--rate", type=int, default=RATE, help="records per second and client")
    parser.add_argument("--gap", type=float, default=GAP_MEAN_S, help="seconds between two faults, in the mean")
    parser.add_argument("--kinds", help="which faults, comma-separated (default: all; slow_down in a long run only)")
    parser.add_argument(
        "--drills",
        help=f"what happens to Postgres: none, or of {','.join(DRILLS)} (default: all from {LONG_RUN_SECONDS} s on)",
    )
    parser.add_argument("--delivery-ms", type=int, default=DELIVERY_MS, help="after this long a client gives up")
    parser.add_argument("--clients", default="", help="only these clients, comma-separated")
    parser.add_argument(
        "--leaders-stay",
        action="store_true",
        help="strike only S3 and Postgres, for less than a lease; a client that begins another epoch fails the run",
    )
    parser.add_argument(
        "--leaders-move", action="store_true", help="besides, move leaders of partitions there and back again"
    )
    parser.add_argument(
        "--kills-only",
        action="store_true",
        help="only kill and pause servers, one at a time; count epochs and records that are stored twice",
    )
    parser.add_argument("--target", choices=TARGETS, default=HEADRACE, help="which servers; with --kills-only")
    parser.add_argument(
        "--directory", type=Path, help="an empty directory for logs and data; without it they stay if the run fails"
    )
    parser.add_argument("--store", choices=STORES, default="s3", help="which object storage")
    args = parser.parse_args()
    every = (*KINDS, *BUCKET_FAULTS)
    logging.disable(logging.CRITICAL)  # the clients tell at length what the faults do to them
    _check_store(parser, args.store)
    chosen = _named(args.drills, DRILLS) if args.drills is not None else _usual_drills(args)
    if args.target != HEADRACE and not args.kills_only:
        parser.error("--target needs --kills-only")
    if "disk_full" in chosen and not args.kills_only and (reason := why_missing()):
        print(f"left out   disk_full: {reason}", flush=True)
        chosen = [drill for drill in chosen if drill != "disk_full"]
    clients = [name for name in args.clients.split(",") if name]
    commands, missing = installed()
    for name in clients:
        if name not in commands:
            parser.error(missing.get(name, f"unknown client: {name}"))
    place = RunDirectory(args.directory)
    if args.kills_only:
        return _run_with_kills(args, clients, place)
    plan = TorturePlan(
        seed=_seed(args),
        seconds=args.seconds,
        kinds=_named(args.kinds, every) if args.kinds is not None else _usual_kinds(args),
        drills=chosen,
        holds_snapshot=bool(chosen),
        gap_s=args.gap,
        rate=args.rate,
        delivery_ms=args.delivery_ms,
        clients=clients,
        leaders_stay=args.leaders_stay,
        leaders_move=args.leaders_move,
        directory=place.path,
        store=args.store,
    )
    print(f"seed {plan.seed}, {plan.seconds:g} s of faults, drills: {', '.join(chosen) or 'none'}", flush=True)
    outcome = asyncio.run(torture(plan, partial(print, flush=True)))
    print_outcome(outcome)
    place.end(is_clean=not outcome.offences)
    return 1 if outcome.offences else 0


def _check_store(parser: argparse.ArgumentParser, store: str) -> None:
    """End unless its server is there; that of S3 has a substitute."""
    if store != "s3" and (reason := why_missing_tool(NEEDS[store])):
        parser.error(reason)


def _run_with_kills(args: argparse.Namespace, clients: Sequence[str], place: RunDirectory) -> int:
    plan = KillsPlan(
        seed=_seed(args),
        seconds=args.seconds,
        target=args.target,
        directory=place.path,
        rate=args.rate,
        delivery_ms=args.delivery_ms,
        clients=clients,
    )
    print(f"seed {plan.seed}, {plan.seconds:g} s of kills and pauses, target: {plan.target}", flush=True)
    outcome = asyncio.run(run_with_kills(plan, partial(print, flush=True)))
    print_kills(outcome)
    place.end(is_clean=not outcome.offences)
    return 1 if outcome.offences else 0


def _seed(args: argparse.Namespace) -> int:
    return random.SystemRandom().randrange(2**31) if args.seed is None else int(args.seed)


def _usual_drills(args: argparse.Namespace) -> Sequence[str]:
    return DRILLS if args.seconds >= LONG_RUN_SECONDS and not args.leaders_stay else ()


def _usual_kinds(args: argparse.Namespace) -> Sequence[str]:
    if args.leaders_stay:
        return STEADY_KINDS
    return (*KINDS, *BUCKET_FAULTS) if args.seconds >= LONG_RUN_SECONDS else KINDS


def _named(words: str, known: Sequence[str]) -> list[str]:
    """The comma-separated ones; `none` or nothing for an empty list."""
    chosen = [word for word in words.split(",") if word not in ("", "none")]
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
