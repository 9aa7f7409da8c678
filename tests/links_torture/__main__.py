"""`make torture-links SECONDS=120`: run, print the counts, exit 1 when the copy is not equal to its source."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from pathlib import Path

from tests.links_torture.run import LinksOutcome, run_links
from tests.tools import why_missing
from tests.torture.run_directory import RunDirectory

OFFENCES_SHOWN = 20


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture-links", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of kills")
    parser.add_argument("--seed", type=int, default=None, help="of the kills; drawn when not given")
    parser.add_argument("--bytes-per-second", type=int, default=1_000_000, help="written at the source")
    parser.add_argument("--directory", type=Path, help="an empty directory for logs and data")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if reason := why_missing("kafka"):
        print(f"cannot run: Apache Kafka: {reason}")
        return 1
    place, began = RunDirectory(args.directory), time.monotonic()
    place.path.chmod(0o711)  # started by root, Postgres runs as another user and must get through
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    print(f"seed {seed}, {args.seconds:g} s of kills, logs and data in {place.path}", flush=True)

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    outcome = asyncio.run(run_links(place.path, seed, args.seconds, args.bytes_per_second, say))
    report(outcome)
    place.end(is_clean=not outcome.offences)
    return 1 if outcome.offences else 0


def report(outcome: LinksOutcome) -> None:
    """Counts first; offences, if any, last."""
    print("kills      " + ", ".join(f"{count} {what}" for what, count in sorted(outcome.kills.items())))
    for topic, counts in outcome.counts.items():
        print(f"{topic:10} " + ", ".join(f"{what} {count:,}" for what, count in sorted(counts.items())))
    for topic, count in outcome.records.items():
        print(f"{topic:10} records {count:,} at {outcome.offsets[topic]:,} offsets of the source")
    print(f"read live  {outcome.read_live:,} records of the copy")
    lags = sorted(outcome.lags)
    if lags:
        p50, p90 = lags[len(lags) // 2], lags[len(lags) * 9 // 10]
        print(f"behind     median {p50:.1f} s, p90 {p90:.1f} s, most {lags[-1]:.1f} s")
    print(f"whole      {outcome.whole_seconds:.1f} s after the producers ended")
    for text, count in outcome.problems.most_common(10):
        print(f"problem    seen {count} times: {text}")
    for offence in outcome.offences[:OFFENCES_SHOWN]:
        print(f"  {offence}")
    print(f"FAILED: {len(outcome.offences)} offences" if outcome.offences else "clean: equal on both sides")


if __name__ == "__main__":
    sys.exit(main())
