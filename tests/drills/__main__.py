"""Drills on a cluster that is made for each: `python -m tests.drills [--store STORE] [NAME ...]`; without a name, all
of them but the restore.

Printed: what happens and when, what /readyz and `headrace doctor` say meanwhile, how long until everything works again
without hands, and what clients, metrics and logs showed. The status is 1 if something did not recover, or if an
acknowledged record is missing. docs/operate/DRILLS.md has one run of each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial

from load.machine_state import machine_state
from tests.drills.restore import restore_drill
from tests.drills.run import FILLS_DISK, SCRIPTS, run_drill
from tests.torture.servers import STORES
from tests.torture.small_disk import why_missing

RESTORED = "restored"


def main() -> int:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*SCRIPTS, RESTORED)))
    parser.add_argument("--store", choices=STORES, default="s3", help="object storage to keep the bucket in (s3)")
    given = parser.parse_args()
    print(machine_state(), flush=True)
    failed = []
    for name in given.names or list(SCRIPTS):
        if name in FILLS_DISK and (reason := why_missing()):
            print(f"== {name}: not run: {reason}", flush=True)
            continue
        drill = restore_drill if name == RESTORED else partial(run_drill, name)
        if not asyncio.run(drill(lambda line: print(line, flush=True), given.store)):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
