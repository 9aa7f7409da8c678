"""Drills on a cluster that is made for each: `python -m tests.drills [NAME ...]`; without a name, all of them.

Printed: what happens and when, what /readyz and `headrace doctor` say meanwhile, how long until everything works again
without hands, and what clients, metrics and logs showed. The status is 1 if something did not recover, or if an
acknowledged record is missing. docs/operate/DRILLS.md has one run of each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from load.machine_state import machine_state
from tests.drills.run import FILLS_DISK, SCRIPTS, run_drill
from tests.torture.small_disk import why_missing


def main() -> int:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCRIPTS))
    names = parser.parse_args().names or list(SCRIPTS)
    print(machine_state(), flush=True)
    failed = []
    for name in names:
        if name in FILLS_DISK and (reason := why_missing()):
            print(f"== {name}: not run: {reason}", flush=True)
        elif not asyncio.run(run_drill(name, lambda line: print(line, flush=True))):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
