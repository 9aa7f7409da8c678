"""`headrace audit --resume-janitor`: allow deletion again, after a look for lost records that it would delete.

Place: under cli/audit.py; compactor/permit.py says what the mark means.
Invariant: files without a row are swept from two hours of age on once deletion continues. Some of them may be the only
copy of records that were acknowledged before a promotion or restore lost their rows. Nothing is resumed over files that
agents recorded as committed and that were not put back, unless the operator confirms it.
"""

from __future__ import annotations

import argparse

from headrace.cli.tables import confirm
from headrace.compactor.audit import OnProgress
from headrace.compactor.lost import find_lost
from headrace.compactor.permit import Mark, read_mark, refusal, write_mark
from headrace.compactor.put_back import files_put_back
from headrace.metastore.api.files import FileApi
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.bucket import newest_life
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads


async def confirm_loss(
    metastore: Metastore, reads: VerifiedReads, clock: Clock, args: argparse.Namespace, bar: OnProgress
) -> None:
    """InvalidError unless no lost file with a recorded commit is left, or the user accepts its loss."""
    life = await newest_life(reads.store, None)
    if life is None or not life.life:
        return
    found = await find_lost(metastore, reads, life.begun_ms, clock.wall_ms(), bar)
    left = found.certain_ids - await files_put_back(reads.store, finished=True)
    if not left:
        return
    records = sum(partition.certain_records for partition in found.in_order())
    confirm(
        args,
        f"delete the only copy of acknowledged records? Life {life.life} of the metastore lost the commits of"
        f" {len(left)} files, which are deleted once deletion goes on; `headrace audit --lost` lists {records} records,"
        " --put-back produces them again, --export copies the files.",
    )


async def deletion_state(metastore: FileApi, store: ObjectStore, *, resume: bool) -> str:
    """Return why no objects are deleted; empty if they are (with `resume`: from now on)."""
    state, mark = await metastore.janitor_state(), await read_mark(store)
    if not resume:
        return refusal(state, mark)
    generation = await metastore.resume_janitor(mark.generation if mark is not None else 0)
    await write_mark(store, Mark(state.incarnation_id, generation))
    return ""
