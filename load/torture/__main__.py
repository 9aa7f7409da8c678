"""`make torture SECONDS=60`: run, print the counts, exit 1 when a record was lost, doubled or out of order."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from functools import partial
from pathlib import Path

from load.torture.faults import KINDS
from load.torture.report import print_outcome
from load.torture.run import TorturePlan, torture
from load.torture.writers import DELIVERY_MS


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of faults")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule of faults; drawn when not given")
    parser.add_argument("--rate", type=int, default=250, help="records per second and client")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which faults, comma-separated (default: all)")
    parser.add_argument("--delivery-ms", type=int, default=DELIVERY_MS, help="after this long a client gives up")
    parser.add_argument("--clients", default="", help="only these clients, comma-separated")
    parser.add_argument("--directory", type=Path, help="an empty directory that keeps logs and data")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the clients tell at length what the faults do to them
    plan = TorturePlan(
        seed=random.SystemRandom().randrange(2**31) if args.seed is None else args.seed,
        seconds=args.seconds,
        kinds=args.kinds.split(","),
        rate=args.rate,
        delivery_ms=args.delivery_ms,
        clients=[name for name in args.clients.split(",") if name],
        directory=args.directory and args.directory.resolve(),
    )
    print(f"seed {plan.seed}, {plan.seconds:g} s of faults", flush=True)
    outcome = asyncio.run(torture(plan, partial(print, flush=True)))
    print_outcome(outcome)
    return 1 if outcome.offences else 0


if __name__ == "__main__":
    sys.exit(main())
