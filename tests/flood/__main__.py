"""Floods on a cluster that is made for each: `python -m tests.flood [NAME ...]`; without a name, all of them.

Printed: the agents' memory, what clients got (errors, waits), metrics that moved, and how long until everything works
again without hands. The status is 1 if something did not recover, or if an acknowledged record is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from headrace.agent.listener.sockets import raise_descriptor_limit
from load.machine_state import machine_state
from tests.flood.run import run_flood
from tests.flood.scripts import FLOODS


def main() -> int:
    """Run them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FLOODS))
    names = parser.parse_args().names or list(FLOODS)
    raise_descriptor_limit()
    print(machine_state(), flush=True)
    failed = [name for name in names if not asyncio.run(run_flood(name, lambda line: print(line, flush=True)))]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
