"""What to do about each problem of a partition. Pure.

Place: under command.py and behind.py.
Invariant: a command that is printed runs as it is, but for the addresses of metastore, bucket and agents. Nothing here
says to skip records before a copy was looked for.
"""

from __future__ import annotations

import shlex

from headrace.compactor.mending.partition_check import Problem, ProblemKind
from headrace.storage.file_id import object_key


def remedy(topic: str, partition_index: int, problem: Problem) -> str:
    """Return what to do, as a sentence with commands."""
    place = f"{shlex.quote(topic)} --partition {partition_index} --offset {problem.first_offset}"
    key = object_key(problem.file_id)
    if problem.kind is ProblemKind.REFUSED:
        return f"let Headrace read {key}: its rights, the bucket's policy, the key of its encryption; skip nothing"
    if problem.kind is ProblemKind.UNSTEADY:
        return "look again; then look for what alters bytes on the way: a proxy, a gateway, a disk of the store"
    if problem.copy is not None:
        return f"headrace damage repair {place}"
    restore = f"restore {key} from a version or a copy of the bucket"
    return f"{restore}; if there is none, the records are lost: headrace damage skip {place}"
