"""A day of arrivals through the compaction policy: `python -m load compaction_simulation`.

Synthetic and in virtual time: files are facts, a merge is arithmetic, every job is done at once. The
busiest case is the one that a single busy agent makes at 100 ms per flush: 864,000 files a day. Prints
what is written for each byte that arrived (write amplification, the flush counted) and for the unluckiest,
the files that a replay of one partition reads (read amplification), and files and rows with and without.
tests/properties/test_compaction_policy.py drives the same arithmetic with arrivals of every kind.
"""

from __future__ import annotations

import argparse
import random
import uuid
from collections import Counter
from dataclasses import dataclass, replace

from headrace.compactor.merge import MergeLimits
from headrace.compactor.planner import LAST_LEVEL, PolicyLimits, choose
from headrace.compactor.sources import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from headrace.metastore.api.compaction import FileFacts
from headrace.storage.file_id import new_file_id
from load.harness import Benchmark, BenchmarkRun

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
class SimulationOutcome:
    """What a run left and cost."""

    flushed_files: int
    flushed_rows: int
    files: int
    rows: int
    files_by_level: dict[int, int]
    write_amplification: float
    most_writes: int
    """Largest number of writes of any byte."""
    puts: int
    """Flushes and merged files."""
    gets: int
    """Number of GETs of merges; files are read in parts of up to 8 MiB."""
    stored_bytes: int
    arrived_bytes: int
    replay_reads: int
    """Files that hold something of one partition: what a replay from its start asks for."""
    jobs: int
    oldest_unmerged_s: float


@dataclass
class SimulatedFile:
    """A live file; `rows` are its extents, `writes` how often its most rewritten byte was written."""

    facts: FileFacts
    born_s: float
    rows: int
    partitions: int
    writes: int = 1


class Simulation:
    """Files as facts. The caller decides when they are flushed, when planning happens and what expires.

    `kept`: the part of its bytes that opening records leaves, by compressing them together.
    """

    def __init__(
        self, limits: PolicyLimits, merging: MergeLimits, partitions: int, rng: random.Random, kept: float = 1.0
    ) -> None:
        self.limits, self.merging, self.partitions, self.kept = limits, merging, partitions, kept
        self.files: dict[uuid.UUID, SimulatedFile] = {}
        self.arrived_bytes = self.written_bytes = self.lost_bytes = 0
        """Flushed; flushed or merged; expired, or saved by compression."""
        self.flushed_files = self.jobs = self.merged_files = self.gets = self.most_writes = 0
        self.smallest_job: int | None = None
        """Bytes that the smallest job from level 1 to 2 made; and the smallest file that any made of level 2:"""
        self.smallest_file: int | None = None
        self._rng = rng

    def flush(self, born_s: float, body_bytes: int, live_bytes: int) -> None:
        """An agent's file; what of it is dead are duplicates."""
        facts = FileFacts(new_file_id(round(born_s * 1000), self._rng), 0, body_bytes, live_bytes, 0)
        self.arrived_bytes += body_bytes
        self.written_bytes += body_bytes
        self.lost_bytes += body_bytes - live_bytes
        self.flushed_files += 1
        if live_bytes:
            self.files[facts.file_id] = SimulatedFile(facts, born_s, self.partitions, self.partitions)

    def expire(self, file_id: uuid.UUID, dead_bytes: int) -> None:
        """Let so much more of a file be dead."""
        file = self.files[file_id]
        file.facts = file.facts._replace(live_bytes=file.facts.live_bytes - dead_bytes)
        self.lost_bytes += dead_bytes
        if file.facts.live_bytes == 0:
            del self.files[file_id]

    def plan(self, now_s: float) -> int:
        """Choose once and do every job at once; how many."""
        facts = [f.facts._replace(age_ms=round((now_s - f.born_s) * 1000)) for f in self.files.values()]
        chosen = choose(facts, frozenset(), self.limits)
        for job in chosen:
            self._merge([self.files.pop(file_id) for file_id in job.file_ids], job.level, now_s)
        self.jobs += len(chosen)
        return len(chosen)

    def _merge(self, inputs: list[SimulatedFile], level: int, now_s: float) -> None:
        window = min(max(self.merging.read_bytes // len(inputs), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)
        self.gets += sum(-(-file.facts.body_bytes // window) for file in inputs)
        live = sum(file.facts.live_bytes for file in inputs)
        made = max(round(live * self.kept), 1) if level == LAST_LEVEL else live
        self.lost_bytes += live - made
        sizes = file_sizes(made, self.partitions, self.merging)
        for size in sizes:
            file_id = new_file_id(round(now_s * 1000), self._rng)
            mine = max(1, -(-self.partitions * size // made))
            rows = max(mine, -(-size // self.merging.extent_bytes))
            writes = 1 + max(file.writes for file in inputs)
            self.files[file_id] = SimulatedFile(FileFacts(file_id, level, size, size, 0), now_s, rows, mine, writes)
            self.most_writes = max(self.most_writes, writes)
        self.written_bytes += made
        self.merged_files += len(sizes)
        if level == LAST_LEVEL:
            self.smallest_file = min(*sizes, self.smallest_file or made, made)
            if inputs[0].facts.level < LAST_LEVEL:
                self.smallest_job = min(made, self.smallest_job or made)


def file_sizes(total: int, partitions: int, limits: MergeLimits) -> list[int]:
    """Return the sizes of files as merge.py cuts them: after the extent with which a file is large enough. The last
    gets the rest.
    """
    extents = max(1, -(-total // (partitions * limits.extent_bytes)))  # of each partition
    extent = max(1, -(-total // (partitions * extents)))
    full = -(-limits.file_bytes // extent) * extent
    return [full] * (total // full) + [total % full] * (total % full > 0)


def simulate(arrivals: Arrivals, limits: PolicyLimits, seed: int = 0) -> SimulationOutcome:
    """Run the policy over the arrivals, planning every 15 seconds."""
    rng = random.Random(seed)
    run = Simulation(limits, MergeLimits(), arrivals.partitions, rng)
    for now in range(0, arrivals.seconds, PLAN_SECONDS):
        for flush in range(round(arrivals.flushes_per_second * PLAN_SECONDS)):
            body = round(arrivals.flush_bytes * rng.uniform(0.5, 1.5))
            run.flush(now + flush / arrivals.flushes_per_second, body, round(body * (1 - arrivals.dead_share)))
        run.plan(now + PLAN_SECONDS)
    files = run.files.values()
    return SimulationOutcome(
        flushed_files=run.flushed_files,
        flushed_rows=run.flushed_files * arrivals.partitions,
        files=len(files),
        rows=sum(file.rows for file in files),
        files_by_level=dict(sorted(Counter(file.facts.level for file in files).items())),
        write_amplification=run.written_bytes / run.arrived_bytes,
        most_writes=run.most_writes,
        puts=run.flushed_files + run.merged_files,
        gets=run.gets,
        stored_bytes=sum(file.facts.body_bytes for file in files),
        arrived_bytes=run.arrived_bytes,
        replay_reads=round(sum(file.partitions for file in files) / arrivals.partitions),
        jobs=run.jobs,
        oldest_unmerged_s=max((arrivals.seconds - f.born_s for f in files if f.facts.level == 0), default=0),
    )


CASES = {
    "busiest: 10 flushes/s of 1 MB": Arrivals(86_400, 10, 1_000_000, 100),
    "busy: 10 flushes/s of 100 KB": Arrivals(86_400, 10, 100_000, 100),
    "hostile: half of it duplicates": Arrivals(86_400, 10, 100_000, 100, dead_share=0.5),
    "quiet: 1 flush/s of 2 KB": Arrivals(86_400, 1, 2_000, 20),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--hours", type=float, default=24)


def benchmark(run: BenchmarkRun) -> None:
    hours: float = run.args.hours
    run.note(f"{hours:g} h of arrivals; every figure is the policy's, nothing is stored")
    for name, arrivals in CASES.items():
        done = simulate(replace(arrivals, seconds=round(hours * 3600)), PolicyLimits())
        figures: dict[str, float | str] = {
            "files without": done.flushed_files,
            "with": done.files,
            "rows without": done.flushed_rows,
            "with it": done.rows,
            "(levels)": str(done.files_by_level),
            "times written": done.write_amplification,
            "at most": done.most_writes,
            "reads of a replay": done.replay_reads,
            "jobs": done.jobs,
            "PUTs": done.puts,
            "GETs": done.gets,
            "GB arrived": done.arrived_bytes / 1e9,
            "GB kept": done.stored_bytes / 1e9,
        }
        run.row(name, figures)


BENCHMARK = Benchmark(
    "a day of arrivals through the compaction policy, without storing anything", benchmark, add_arguments
)
