"""Judges what a cluster does: whether its life is current, its background work is done, and by whom.

Place: one part of the area cluster of `headrace doctor`; the console shows the same as alarms.
Invariant: reads only; the judges decide on facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.listeners import COMPACTOR
from headrace.metastore.api.bucket import KnownBucket
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import JobCount
from headrace.metastore.life.own_bucket import ADOPT
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import REASONS
from headrace.metastore.upkeep_watch import overdue_jobs

AREA = Area("cluster")


def judge_own_bucket(known: KnownBucket | None, address: str) -> Finding:
    """Judge whether the setting `bucket` names the bucket that has the metastore's files."""
    if known is None:
        found = "the metastore does not know its bucket yet: another one could be taken for it"
        return AREA.warn("bucket", found, "start an agent of this version, which records it")
    if known.address != address:
        to_do = f"correct bucket; {ADOPT} (docs/operate/POSTGRES.md)"
        return AREA.bad("bucket", f"the metastore has its files in {known.address}, and this is {address}", to_do)
    return AREA.ok("bucket", f"the metastore has its files in {address}")


def judge_life(verdict: LifeVerdict) -> Finding:
    """Judge whether agents may write to this Postgres."""
    if verdict is LifeVerdict.BEGIN:
        return AREA.warn("life", "this server was promoted, and no agent has begun its life yet", "start an agent")
    if (reason := REASONS.get(verdict)) is not None:
        found = f"agents write nothing: {reason}"
        to_do = "docs/operate/POSTGRES.md: after a restore or a move, headrace migrate --restored"
        if verdict is LifeVerdict.OTHER_BUCKET:
            to_do = f"correct bucket; {ADOPT} (docs/operate/POSTGRES.md)"
        return AREA.bad("life", found, to_do)
    return AREA.ok("life", "this Postgres is the metastore that the bucket names")


def judge_roles(counts: Mapping[str, int]) -> Finding:
    """`counts`: running processes by role."""
    if not any(counts.values()):
        return AREA.warn("compactor", "no process of the cluster is running", "start an agent and a compactor")
    if not counts.get(COMPACTOR):
        found = "no process has the role compactor: no records expire, no files are merged and none are deleted"
        return AREA.bad("compactor", found, "run headrace compactor, or add compactor to process.roles")
    return AREA.ok("compactor", f"{counts[COMPACTOR]} processes have the role compactor")


def judge_jobs(counts: Sequence[JobCount]) -> Iterator[Finding]:
    """Jobs that wait for too long, and jobs that were given up."""
    late = overdue_jobs(counts)
    given_up = sum(each.jobs for each in counts if each.state is JobState.GIVEN_UP)
    if late:
        to_do = "start more compactors, or raise compactor.threads (docs/operate/COMPACTION.md)"
        yield AREA.warn("background work", "; ".join(late), to_do)
    if given_up:
        to_do = "the column last_error of the table jobs says why"
        yield AREA.warn("jobs", f"{given_up} jobs failed ten times and were given up", to_do)
    if not late and not given_up:
        yield AREA.ok("background work", "no job waits for long, none was given up")
