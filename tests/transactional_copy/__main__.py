"""`make torture-transactions SECONDS=120`: run, print the counts, exit 1 when a copy is not exact."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.tools import why_missing
from tests.torture.drills import DRILLS as EVERY_DRILL
from tests.torture.faults import BUCKET_FAULTS, KINDS
from tests.torture.report import print_reasons
from tests.torture.run_directory import RunDirectory
from tests.torture.servers import NEEDS, STORES
from tests.transactional_copy.run import DRILLS, FAULTS, CopyOutcome, CopyPlan, copy_under_faults
from tests.transactional_copy.verdict import KnownOutcome

OFFENCES_SHOWN = 20
REASONS_SHOWN = 6


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture-transactions", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of faults")
    parser.add_argument("--seed", type=int, default=None, help="of the schedules; drawn when not given")
    parser.add_argument("--rate", type=int, default=150, help="records per second into the input")
    parser.add_argument("--kinds", default=",".join(FAULTS), help=f"none, or of {','.join((*KINDS, *BUCKET_FAULTS))}")
    parser.add_argument("--drills", default=",".join(DRILLS), help=f"none, or of {','.join(EVERY_DRILL)}")
    parser.add_argument("--without-java", action="store_true", help="only librdkafka's copiers")
    parser.add_argument(
        "--directory", type=Path, help="an empty directory for logs and data; without it they stay if the run fails"
    )
    parser.add_argument("--store", choices=STORES, default="s3", help="which object storage")
    args = parser.parse_args()
    if args.store != "s3" and (reason := why_missing(NEEDS[args.store])):
        parser.error(reason)
    logging.disable(logging.CRITICAL)  # the clients tell at length what the faults do to them
    reason = "not asked for" if args.without_java else why_missing("kafka-clients")
    if reason:
        print(f"left out   java: {reason}")
    place = RunDirectory(args.directory)
    plan = CopyPlan(
        seed=random.SystemRandom().randrange(2**31) if args.seed is None else args.seed,
        seconds=args.seconds,
        rate=args.rate,
        kinds=_named(args.kinds, (*KINDS, *BUCKET_FAULTS)),
        drills=_named(args.drills, [drill for drill in EVERY_DRILL if drill != "disk_full"]),
        with_java=not reason,
        directory=place.path,
        store=args.store,
    )
    print(f"seed {plan.seed}, {plan.seconds:g} s of faults, drills: {', '.join(plan.drills) or 'none'}", flush=True)
    outcome = asyncio.run(copy_under_faults(plan, partial(print, flush=True)))
    print_copy(outcome)
    place.end(is_clean=not outcome.offences)
    return 1 if outcome.offences else 0


def print_copy(outcome: CopyOutcome) -> None:
    """Counts first; offences, if any, with the seed last."""
    print(f"faults     {outcome.injected.total()}")
    for kind, count in sorted(outcome.injected.items()):
        print(f"           {count:5}  {kind}")
    print("copiers          transactions  committed  aborted or given up  unknown")
    for report in outcome.copiers:
        counts = [report.count(each) for each in (KnownOutcome.COMMITTED, KnownOutcome.NEVER, KnownOutcome.ATTEMPTED)]
        print(f"           {report.name:14}{len(report.transactions):5}{counts[0]:11}{counts[1]:21}{counts[2]:9}")
        for reason, count in report.over.most_common(REASONS_SHOWN):
            print(f"             started again {count:3}: {reason}")
        for reason, count in report.again.most_common(REASONS_SHOWN):
            print(f"             repeated {count:8}: {reason}")
    print(f"           processes {outcome.incarnations}")
    written = outcome.written
    print(f"input      sent {written.sent:,}  acknowledged {len(written.acknowledged):,}  read {outcome.source:,}")
    print_reasons(written)
    print(
        f"copy       committed {outcome.committed:,}  with aborted ones {outcome.uncommitted:,}"
        f"  read during the run {outcome.seen:,}  caught up in {outcome.catch_up_s:.1f} s"
    )
    print("           " + "  ".join(f"{kind} {len(lines)}" for kind, lines in outcome.output.by_kind().items()))
    print(f"postgres   acknowledged transactions lost and listed {outcome.output.lost_and_listed}", end="")
    print(f", records of the input {outcome.input.lost_and_listed}")
    if outcome.offences:
        for offence in outcome.offences[:OFFENCES_SHOWN]:
            print(f"  {offence}")
        print(f"FAILED: {len(outcome.offences)} offences; replay the faults with SEED={outcome.plan.seed}")
    else:
        print(f"clean (seed {outcome.plan.seed})")


def _named(words: str, known: Sequence[str]) -> list[str]:
    """The comma-separated ones; `none` for an empty list."""
    chosen = [word for word in words.split(",") if word not in ("", "none")]
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
