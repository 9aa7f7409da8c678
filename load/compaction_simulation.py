"""A day of arrivals through the compaction policy: `python -m load.compaction_simulation`.

Synthetic and in virtual time: files are facts, a merge is arithmetic, every job is done at once. The
busiest case is the one that a single busy agent makes at 100 ms per flush: 864,000 files a day. Prints
what is written for each byte that arrived (write amplification, the flush counted), the files that a
replay of one partition reads (read amplification), and files and metastore rows with and without.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import dataclass

from compactor.merge import MergeLimits
from compactor.policy import LAST_LEVEL, PolicyLimits, choose
from compactor.sources import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from metastore.compaction import FileFacts
from storage.file_id import new_file_id

PLAN_SECONDS = 15


@dataclass(frozen=True)
class Arrivals:
    """Every flush holds about `flush_bytes`, spread over all `partitions`; `dead_share` of them duplicates."""

    seconds: int
    flushes_per_second: float
    flush_bytes: int
    partitions: int
    dead_share: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What a run left and cost."""

    flushed_files: int
    flushed_rows: int
    files: int
    rows: int
    files_by_level: dict[int, int]
    write_amplification: float
    puts: int
    """Flushes and merged files."""
    gets: int
    """Of merges; files are read in parts of up to 8 MiB."""
    stored_bytes: int
    arrived_bytes: int
    replay_reads: int
    """Files that hold something of one partition: what a replay from its start asks for."""
    jobs: int
    oldest_unmerged_s: float


@dataclass
class _File:
    """A live file; `rows` are its extents."""

    facts: FileFacts
    born_s: float
    rows: int
    partitions: int


def simulate(arrivals: Arrivals, limits: PolicyLimits, seed: int = 0) -> Outcome:
    """Run the policy over the arrivals, planning every 15 seconds."""
    rng = random.Random(seed)
    merging = MergeLimits()
    files: dict[object, _File] = {}
    arrived = written = flushed = jobs = merged_files = gets = 0
    for now in range(0, arrivals.seconds, PLAN_SECONDS):
        for flush in range(round(arrivals.flushes_per_second * PLAN_SECONDS)):
            born = now + flush / arrivals.flushes_per_second
            body = round(arrivals.flush_bytes * rng.uniform(0.5, 1.5))
            live = round(body * (1 - arrivals.dead_share))
            file_id = new_file_id(round(born * 1000), rng)
            files[file_id] = _File(FileFacts(file_id, 0, body, live, 0), born, arrivals.partitions, arrivals.partitions)
            arrived += body
            flushed += 1
        end = now + PLAN_SECONDS
        facts = [f.facts._replace(age_ms=round((end - f.born_s) * 1000)) for f in files.values()]
        for job in choose(facts, frozenset(), limits):
            inputs = [files.pop(file_id) for file_id in job.file_ids]
            window = min(max(merging.read_bytes // len(inputs), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)
            gets += sum(-(-file.facts.body_bytes // window) for file in inputs)
            for merged in _merged(inputs, job.level, end, merging, arrivals.partitions, rng):
                files[merged.facts.file_id] = merged
                written += merged.facts.body_bytes
                merged_files += 1
            jobs += 1
    return Outcome(
        flushed_files=flushed,
        flushed_rows=flushed * arrivals.partitions,
        files=len(files),
        rows=sum(file.rows for file in files.values()),
        files_by_level=dict(sorted(Counter(file.facts.level for file in files.values()).items())),
        write_amplification=(arrived + written) / arrived,
        puts=flushed + merged_files,
        gets=gets,
        stored_bytes=sum(file.facts.body_bytes for file in files.values()),
        arrived_bytes=arrived,
        replay_reads=round(sum(file.partitions for file in files.values()) / arrivals.partitions),
        jobs=jobs,
        oldest_unmerged_s=max((arrivals.seconds - f.born_s for f in files.values() if f.facts.level == 0), default=0),
    )


def _merged(
    inputs: list[_File], level: int, now: float, limits: MergeLimits, partitions: int, rng: random.Random
) -> list[_File]:
    """What a job makes of its inputs: at the last level several files, each of a share of the partitions."""
    live = sum(file.facts.live_bytes for file in inputs)
    count = max(1, -(-live // limits.file_bytes)) if level == LAST_LEVEL else 1
    share = -(-live // count)
    mine = max(1, partitions // count)
    rows = max(mine, -(-share // limits.extent_bytes))
    made = []
    for _ in range(count):
        file_id = new_file_id(round(now * 1000), rng)
        made.append(_File(FileFacts(file_id, level, share, share, 0), now, rows, mine))
    return made


CASES = {
    "busiest: 10 flushes/s of 1 MB": Arrivals(86_400, 10, 1_000_000, 100),
    "busy: 10 flushes/s of 100 KB": Arrivals(86_400, 10, 100_000, 100),
    "hostile: half of it duplicates": Arrivals(86_400, 10, 100_000, 100, dead_share=0.5),
    "quiet: 1 flush/s of 2 KB": Arrivals(86_400, 1, 2_000, 20),
}


def main() -> None:
    """Print each case, a day scaled down to `--hours`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24)
    hours: float = parser.parse_args().hours
    print(f"{hours:g} h of arrivals; every figure is the policy's, nothing is stored")
    print(
        f"{'case':32} {'files':>18} {'rows':>22} {'levels':>26} {'written':>8} {'replay reads':>18} {'jobs':>7}"
        f" {'PUTs':>9} {'GETs':>9} {'GB kept':>15}"
    )
    for name, arrivals in CASES.items():
        scaled = Arrivals(
            round(hours * 3600),
            arrivals.flushes_per_second,
            arrivals.flush_bytes,
            arrivals.partitions,
            arrivals.dead_share,
        )
        done = simulate(scaled, PolicyLimits())
        print(
            f"{name:32} {done.flushed_files:>9,} > {done.files:>6,} {done.flushed_rows:>11,} > {done.rows:>8,} "
            f"{done.files_by_level!s:>26} {done.write_amplification:>7.2f}x "
            f"{done.flushed_files:>9,} > {done.replay_reads:>6,} {done.jobs:>7,}"
            f" {done.puts:>9,} {done.gets:>9,} {done.arrived_bytes / 1e9:>6.1f} > {done.stored_bytes / 1e9:>6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
