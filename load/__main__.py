"""`make bench`: every benchmark in turn, each in a separate process.

Figures are of the machine that runs them; what to compare are the ratios within one run.
"""

from __future__ import annotations

import subprocess
import sys

from load.machine_state import machine_state

BENCHES = {
    "load.bench_codec": "Produce and Fetch codecs, and the listener",
    "load.bench_store": "object store requests",
    "load.bench_copies": "copies of bytes by the kernel: the floors of receive, write and send",
    "load.bench_commit": "the commit on Postgres",
    "load.bench_ceiling": "how much one Postgres orders, and the GiB/s that it carries",
    "load.bench_compaction": "compaction, level by level",
    "load.compaction_hour": "an hour of arrivals, with and without compaction",
    "load.purge_duplicates": "dead bytes after a run of hostile duplicates",
    "load.bench_life": "the life of the metastore: its check, and how long a new one takes to begin",
    "load.bench_new_life": "how long 100 consumers of 4,000 partitions wait after Postgres is promoted",
    "load.bench_metadata": "a million partitions: image, snapshot, Metadata answers",
    "load.bench_turns": "how long requests for what a cluster has occupy the event loop",
    "load.bench_groups": "a consumer group's coordinator",
    "load.bench_request": "a Produce request's own Python",
    "load.bench_tracing": "the same with spans: off, sampled, all",
    "load.bench_agent": "a whole agent",
    "load.bench_committers": "the commits of 200 agents",
    "load.bench_processes": "several agents under one command, against one",
    "load.bench_memory": "resident memory of an agent against its budget",
    "load.bench_start": "starts: from nothing, with data, a further agent",
    "load.bench_idle": "three agents while nothing happens",
    "load.bench_isolation": "a backfill next to live producers and consumers",
}


def main() -> int:
    """Run them all; 1 if any failed."""
    failed = []
    for module, title in BENCHES.items():
        print(f"\n== {title} ({module}); {machine_state()}", flush=True)
        if subprocess.run([sys.executable, "-m", module], check=False).returncode:
            failed.append(module)
    for module in failed:
        print(f"failed: {module}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
