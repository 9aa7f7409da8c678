"""`make torture-streams SECONDS=120 [SEED=n]`: run, print the counts, exit 1 when a count differs from its input."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.streams_torture.run import StreamsPlan, torture
from tests.tools import why_missing
from tests.torture.run_directory import RunDirectory


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture-streams", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of faults")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule of faults; drawn when not given")
    parser.add_argument("--rate", type=int, default=50, help="lines per second")
    parser.add_argument("--instances", type=int, default=2, help="processes of the application at a time")
    parser.add_argument("--gap", type=float, default=3.0, help="seconds between two faults, in the mean")
    parser.add_argument("--directory", type=Path, help="an empty directory for logs and data")
    args = parser.parse_args()
    if reason := why_missing("kafka-apps"):
        print(f"cannot run: Kafka Streams: {reason}")
        return 1
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else int(args.seed)
    place = RunDirectory(args.directory)
    print(f"seed {seed}, {args.seconds:g} s of faults, logs and data in {place.path}", flush=True)
    plan = StreamsPlan(seed, args.seconds, args.rate, args.instances, args.gap)
    outcome = asyncio.run(torture(plan, place.path))
    print(f"faults     {outcome.injected.total()}: {dict(sorted(outcome.injected.items()))}")
    print(f"lines      {outcome.lines:,} acknowledged; counted {outcome.settled_seconds:.1f} s after the last one")
    print(f"instances  {outcome.started} started, {outcome.ended} ended by themselves; {args.instances} at a time")
    for offence in outcome.offences[:20]:
        print(f"OFFENCE    {offence}")
    print("clean" if not outcome.offences else f"{len(outcome.offences)} offences, seed {seed}")
    place.end(is_clean=not outcome.offences)
    return 1 if outcome.offences else 0


if __name__ == "__main__":
    sys.exit(main())
