"""`make compat`: the client libraries' own tests against Headrace, counted; and every answer against Kafka's classes.

Place: the command line over runner.py and codec_suite.py. Prints a line per suite and every failure that
docs/start/COMPATIBILITY.md does not explain; exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.compat.suites import codec_suite
from tests.compat.suites.catalog import SUITES
from tests.compat.suites.known import reason_for
from tests.compat.suites.runner import CompatError, Outcome, bring, prepare, run


def main(argv: list[str] | None = None) -> int:
    """Run the chosen suites one after another."""
    names = [*(suite.name for suite in SUITES), codec_suite.NAME]
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("--suite", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--only", help="only tests with a matching name (pytest -k, jest -t)")
    parser.add_argument("--sources", type=Path, default=Path(".compat/sources"), help="folder of the checkouts")
    parser.add_argument("--work", type=Path, default=Path(".compat"), help="environments, logs and reports")
    args = parser.parse_args(argv)
    args.sources.mkdir(parents=True, exist_ok=True)
    unexplained = 0
    if not args.suite or codec_suite.NAME in args.suite:
        print(f"{codec_suite.NAME}: running", flush=True)
        unexplained += _report(codec_suite.NAME, codec_suite.run(args.work))
    for suite in SUITES:
        if args.suite and suite.name not in args.suite:
            continue
        print(f"{suite.name}: running", flush=True)
        try:
            run_in = prepare(suite, bring(suite, args.sources), args.work)
            outcomes = run(suite, run_in, args.work, args.only)
        except CompatError as error:
            print(f"{suite.name}: not run: {error}", flush=True)
            unexplained += 1
            continue
        unexplained += _report(suite.name, outcomes)
    return 1 if unexplained else 0


def _report(name: str, outcomes: list[Outcome]) -> int:
    """Return how many failures have no known reason."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    surprises = [outcome for outcome in failed if reason_for(name, outcome.test) is None]
    print(
        f"{name}: {counts['passed']} passed, {len(failed) - len(surprises)} failed for known reasons,"
        f" {len(surprises)} failed, {counts['skipped']} skipped",
        flush=True,
    )
    for outcome in surprises:
        print(f"  failed: {outcome.test}: {outcome.reason[:160]}", flush=True)
    return len(surprises)


if __name__ == "__main__":
    sys.exit(main())
