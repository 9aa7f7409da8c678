"""Find the damaged extents that the command names, show what can be done for each, and do it.

Place: under command.py.
Invariant: each extent is read again before it is replaced. One that is sound by now is only forgotten; if reads
differ, it is left alone, with an error. Nothing is replaced without confirmation.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.cli.damage.commands import ways_past
from headrace.cli.output import write
from headrace.cli.progress_bar import ProgressBar
from headrace.cli.record_json import plain
from headrace.cli.tables import Row, confirm
from headrace.cli.times import iso_time
from headrace.compactor.mending.mend import ExtentLook, Mending
from headrace.compactor.mending.skipped import lost_ranges, skipped, write_skipped
from headrace.metastore.api.compaction import CompactionApi, SwapOutcome
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.store import ObjectStore

LISTED_MAX = 1_000


class Damaged(NamedTuple):
    """What the command names: one extent, or with `offset` None all recorded ones of the partition."""

    topic: str
    partition_index: int
    offset: int | None


async def listed(metastore: CompactionApi) -> tuple[list[Row], int]:
    """The rows of `headrace damage list`, and the number of damaged extents."""
    found, total = await metastore.list_damage(LISTED_MAX)
    rows: list[Row] = [
        {
            "topic": one.topic,
            "partition": one.partition_index,
            "first_offset": one.first_offset,
            "last_offset": one.last_offset,
            "file": one.extent.file_id,
            "position": one.extent.position,
            "kind": one.kind.name.lower(),
            "found": iso_time(one.found_ms),
            "checked": iso_time(one.checked_ms),
            "why": one.why,
        }
        for one in found
    ]
    return rows, total


async def mend_all(
    metastore: PostgresMetastore,
    store: ObjectStore,
    damaged: Damaged,
    args: argparse.Namespace,
    clock: Clock,
    rng: random.Random,
) -> int:
    """The exit status: 1 if something stays damaged. NotFoundError for a partition that does not exist."""
    image = await load_image(metastore.cluster)
    topic = image.topics_by_name.get(damaged.topic)
    key = None if topic is None else topic.key(damaged.partition_index)
    if topic is None or key is None:
        raise NotFoundError(f"no such partition: {damaged.topic}:{damaged.partition_index}")
    name = PartitionName(topic.topic_id, damaged.partition_index)
    mending = Mending(metastore, store, metastore.commit_shards, clock, rng)
    mender = _Mender(metastore, store, mending, args, clock)
    answers: list[dict[str, Any]] = []
    status = 0
    for offset in await _offsets(metastore.compaction, key, damaged):
        bar = ProgressBar()
        look = await mending.look(name, key, offset, partial(bar, "files searched"))
        bar.close()
        answer = _describe(damaged, look)
        if not args.json:
            for line in _lines(answer):
                write(line)
        answer["outcome"] = await mender.mend(name, damaged, look)
        status |= answer["outcome"] not in ("sound", "replaced")
        answers.append(answer)
        if not args.json:
            write(f"{answer['outcome']}: {damaged.topic}:{damaged.partition_index} offset={offset}")
    if args.json:
        write(json.dumps(plain(answers)))
    elif not answers:
        write("no damage is recorded here: --offset names an extent; headrace audit --deep finds damage")
    return status


async def _offsets(metastore: CompactionApi, key: int, damaged: Damaged) -> list[int]:
    if damaged.offset is not None:
        return [damaged.offset]
    found, _ = await metastore.list_damage(LISTED_MAX)
    return [one.first_offset for one in found if one.extent.partition_key == key]


class _Mender(NamedTuple):
    """What one command repairs with."""

    metastore: PostgresMetastore
    store: ObjectStore
    mending: Mending
    args: argparse.Namespace
    clock: Clock

    async def mend(self, name: PartitionName, damaged: Damaged, look: ExtentLook) -> str:
        """Return what was done."""
        if not look.found:
            await self.metastore.compaction.clear_damage(look.extent.file_id, look.extent.position)
            return "sound"
        if look.lost and not self.args.skips:
            return "not repaired"
        if self.args.dry_run:
            return "not done: --dry-run"
        what = f"skip {_records(look)}, which are lost" if look.lost else "replace the extent by a sound copy"
        confirm(self.args, f"{what}? {damaged.topic}:{damaged.partition_index}")
        entry = skipped(damaged.topic, name.topic_id, damaged.partition_index, look, self.clock.wall_ms())
        if look.lost:
            await write_skipped(self.store, entry)
        outcome = await self.mending.replace(look, name, skips=self.args.skips)
        entry.outcome = "done" if outcome is SwapOutcome.DONE else "lost"
        if look.lost:
            await write_skipped(self.store, entry)
        return "replaced" if outcome is SwapOutcome.DONE else "not done: the extent was replaced or removed meanwhile"


def _describe(damaged: Damaged, look: ExtentLook) -> dict[str, Any]:
    extent = look.extent
    return {
        "topic": damaged.topic,
        "partition": damaged.partition_index,
        "file": extent.file_id,
        "position": extent.position,
        "length": extent.length,
        "extent_offsets": [extent.base_offset, extent.last_offset],
        "damaged": [
            {
                "first_offset": lost.first_offset,
                "last_offset": lost.last_offset,
                "records": lost.records,
                "why": lost.why,
                "found_in": one.source or None,
            }
            for one, lost in zip(look.found, lost_ranges([one.piece for one in look.found]), strict=True)
        ],
    }


def _lines(answer: dict[str, Any]) -> Sequence[str]:
    place = f"{answer['topic']}:{answer['partition']}"
    first, last = answer["extent_offsets"]
    lines = [f"{place} offsets={first}-{last} file={answer['file']} position={answer['position']}"]
    for one in answer["damaged"]:
        count = "unknown" if one["records"] is None else one["records"]
        found = f"found in {one['found_in']}" if one["found_in"] else "no sound copy was found"
        lines.append(
            f"  damaged: offsets={one['first_offset']}-{one['last_offset']} records={count} {one['why']}; {found}"
        )
    lost = [one for one in answer["damaged"] if not one["found_in"]]
    if lost:
        lines.append(f"  {ways_past(answer['topic'], answer['partition'], lost[0]['first_offset'])}")
    return lines


def _records(look: ExtentLook) -> str:
    ranges = ", ".join(f"{one.piece.base_offset}-{one.piece.last_offset}" for one in look.lost)
    return f"the records at offsets {ranges}"
