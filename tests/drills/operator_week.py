"""An operator's week in a quarter of an hour: `python -m tests.drills.operator_week [NAME ...]`.

Every drill of scripts.py on a cluster that is made for it (three agents, a Postgres with fsync, a real S3 server, two
clients), backups that are restored, a standby that lacks the last seconds, and the states in which nothing is lost and
something is set wrong. Each drill is judged: it recovers without hands, no acknowledged record is missing, twice or out
of order (with a standby that is behind: each missing one is listed), and the operator saw what is expected (readiness,
doctor, metrics, few log lines); each state by whether the doctor names its cause. The status is
1 if one was not as it should be, or if all together took longer than MINUTES_MAX. docs/operate/DRILLS.md has a run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback

from load.machine_state import machine_state
from tests.drills.promotion import promotion_drill
from tests.drills.restore import inline_restore_drill, restore_drill
from tests.drills.run import FILLS_DISK, SCRIPTS, run_drill
from tests.drills.scripts import DRILLS
from tests.drills.states import states_drill
from tests.torture.small_disk import why_missing

MINUTES_MAX = 15.0
OTHERS = {
    "restored": restore_drill,
    "restored_inline": inline_restore_drill,
    "promoted_behind": promotion_drill,
    "states": states_drill,
}
EVERY = (*DRILLS, *OTHERS)
"""The drills that are run if none is named. Those of inline.py, six minutes more, are left to `make drills`."""


def main() -> int:
    """Run them one after another, and judge the week."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*SCRIPTS, *OTHERS)))
    names = parser.parse_args().names or EVERY
    print(machine_state(), flush=True)
    began, judged = time.monotonic(), dict[str, str]()
    for name in names:
        started = time.monotonic()
        if name in FILLS_DISK and (reason := why_missing()):
            judged[name] = f"not run: {reason}"
            continue
        verdict = "passed" if _passes(name) else "FAILED"
        judged[name] = f"{verdict} in {time.monotonic() - started:.0f} s"
    minutes = (time.monotonic() - began) / 60
    print("== the week")
    for name, verdict in judged.items():
        print(f"  {name:20} {verdict}")
    is_quick = minutes <= MINUTES_MAX
    print(f"  {len(judged)} drills in {minutes:.1f} minutes{'' if is_quick else f', more than {MINUTES_MAX:.0f}'}")
    return 0 if is_quick and not any("FAILED" in verdict for verdict in judged.values()) else 1


def _passes(name: str) -> bool:
    """Run one drill; one that raises has failed, and the others are run nevertheless."""
    try:
        work = OTHERS.get(name)
        return asyncio.run(run_drill(name, _write) if work is None else work(_write))
    except Exception:
        _write(f"  FAILED   {traceback.format_exc()}")
        return False


def _write(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
