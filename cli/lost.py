"""What `headrace audit` does with lost records: shows them, produces them again, allows deletion again.

Place: under cli/audit.py (--lost, --put-back, --resume-janitor). compactor/put_back.py plans what can be put back,
compactor/share_record.py finds lost acknowledgements, compactor/permit.py says what the mark of a restore means.
Invariant of --put-back: one idempotent producer sends the batches of a partition in order, each under the sequence
that the plan gives it. If the command is interrupted and repeated, it sends all again under the same sequences:
agents recognise what is stored. Nothing is sent without confirmation.
Invariant of --resume-janitor: files without a row are swept from two hours of age on once deletion continues. Some
of them may be the only copy of records that were acknowledged before a promotion or restore lost their rows. Nothing
is resumed over files that agents recorded as committed and that were not put back, unless the operator confirms it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.offsets import TopicPartition, partitions_of
from headrace.cli.client.records import init_producer_id, produce_again
from headrace.cli.output import ProgressBar, write
from headrace.cli.record_json import plain
from headrace.cli.tables import confirm, iso_time
from headrace.compactor.audit import OnProgress
from headrace.compactor.lost import Lost, find_lost
from headrace.compactor.permit import Mark, read_mark, refusal, write_mark
from headrace.compactor.put_back import (
    Planned,
    PlannedBatch,
    PutBack,
    begin_put_back,
    end_put_back,
    files_put_back,
    plan_put_back,
    read_put_back,
    read_whole,
)
from headrace.compactor.share_record import LostShare, LostShares
from headrace.metastore.api.files import FileApi
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import IndexApi
from headrace.metastore.keys import split_partition_key
from headrace.metastore.life.bucket import newest_life
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import decode_records
from headrace.storage.records.compression import Codec
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import NO_EPOCH, SoundBatch


def lost_share_lines(found: LostShares, image: MetadataImage) -> Iterator[str]:
    """Yield a line for each group and partition, and how much is known."""
    for lost in found.lost:
        topic, index = _partition(lost, image)
        offsets = ",".join(f"{first}-{last}" for first, last in lost.ranges)
        gone = "" if lost.is_known else " (this metastore had nothing of the group there)"
        yield (
            f"share group {plain(lost.group_id)}: {topic} partition={index} acknowledged={lost.records}"
            f" offsets={offsets}{gone}"
        )
    if found.stored_ms or found.agents_ms:
        stored = iso_time(found.stored_ms) if found.stored_ms else "never"
        agents = iso_time(found.agents_ms) if found.agents_ms else "never"
        yield (
            f"acknowledgements of share groups that were lost: {sum(lost.records for lost in found.lost)}; their"
            f" records are delivered again. Recorded last: all groups {stored}, by agents that stopped or lost the"
            f" metastore {agents}; what was acknowledged later is not listed"
        )


def lost_shares_as_dict(found: LostShares, image: MetadataImage) -> dict[str, Any]:
    """Return what `lost_share_lines` says, for programs."""
    lost = []
    for each in found.lost:
        topic, index = _partition(each, image)
        lost.append(
            {
                "group": each.group_id,
                "topic": topic,
                "partition_index": index,
                "records": each.records,
                "offsets": each.ranges,
                "is_known": each.is_known,
            }
        )
    return {"lost": lost, "stored_ms": found.stored_ms, "agents_ms": found.agents_ms}


def _partition(lost: LostShare, image: MetadataImage) -> tuple[str | None, int]:
    number, index = split_partition_key(lost.partition_key)
    topic = image.topics_by_number.get(number)
    return None if topic is None else topic.name, index


TRIES, PAUSE_SECONDS = 60, 1.0
"""Number of tries of one batch, and the pause between them, while its leader is away or moves."""
WARNING = (
    "they are appended at the end: their offsets, and their order among records that came after them, differ from"
    " before; records that a client sent again without a producer id, or by a new producer, are there twice"
)


async def put_back(
    api: IndexApi,
    reads: VerifiedReads,
    image: MetadataImage,
    life: int,
    found: Lost,
    args: argparse.Namespace,
) -> int:
    """The exit status: 0 if all that can be put back is."""
    store = reads.store
    plan = await read_put_back(store, life)
    if plan is not None and plan.is_done:
        write(f"put back already, in this life of the metastore: batches={len(plan.batches)}")
        return 0
    with KafkaCluster.of(client_config(args.put_back, args.command_config)) as cluster:
        if plan is None:
            before = await files_put_back(store)
            fed = {file_id: ranges for file_id, ranges in found.committed.items() if file_id not in before}
            moved = {f: [p for p in places if p.source not in before] for f, places in found.moved.items()}
            moved = {file_id: places for file_id, places in moved.items() if places}
            planned = await plan_put_back(api, reads, fed, image.topics_by_id, moved)
            batches = planned.batches
            for line in left_out(planned):
                write(line)
            if not batches:
                write("nothing is left to be put back")
                return 0
            for line in _lines(batches):
                write(line)
            confirm(args, f"put back {sum(batch.records for batch in batches)} records? {WARNING}.")
            plan = PutBack(life, *await asyncio.to_thread(init_producer_id, cluster), batches)
            await begin_put_back(store, plan)
        else:
            write(f"going on with what was begun: batches={len(plan.batches)}")
            confirm(args, f"go on? {WARNING}.")
        await _send(cluster, reads, plan)
    await end_put_back(store, plan)
    write(f"put back: batches={len(plan.batches)} records={sum(batch.records for batch in plan.batches)}")
    return 0


def left_out(planned: Planned) -> Iterator[str]:
    """Return what is not put back, and why."""
    reasons = {
        "some of them were never appended": planned.dropped,
        "this life of the metastore has aborted their transactions": planned.transactional,
    }
    for reason, counted in reasons.items():
        for (topic, index), records in sorted(counted.items()):
            yield f"left out, because {reason}: {topic} partition={index} records={records}"


def _lines(batches: list[PlannedBatch]) -> Iterator[str]:
    records: Counter[TopicPartition] = Counter()
    for batch in batches:
        records[batch.topic, batch.partition_index] += batch.records
    for (topic, index), count in sorted(records.items()):
        yield f"to be put back: {topic} partition={index} records={count}"


async def _send(cluster: KafkaCluster, reads: VerifiedReads, plan: PutBack) -> None:
    bar, sequences = ProgressBar(), Counter[TopicPartition]()
    file_id, body = None, memoryview(b"")
    for done, batch in enumerate(plan.batches, 1):
        if batch.file_id != file_id:
            file_id, (body, _) = batch.file_id, await read_whole(reads, batch.file_id)
        place = (batch.topic, batch.partition_index)
        data = memoryview(bytearray(body[batch.position : batch.position + batch.length]))
        await _insist(cluster, place, SoundBatch(data, 0, NO_EPOCH), plan, sequences[place])
        sequences[place] += batch.records
        bar("batches", done, len(plan.batches))
    bar.close()


async def _insist(
    cluster: KafkaCluster, place: TopicPartition, batch: SoundBatch, plan: PutBack, sequence: int
) -> None:
    """Send one batch until it is stored: its sequence makes that safe. Errors as `require`, for a final refusal."""
    producer = (plan.producer_id, plan.producer_epoch, sequence)
    clock, rng = SystemClock(), random.Random()
    for attempt in range(TRIES):
        try:
            code = await asyncio.to_thread(_send_one, cluster, place, batch, producer)
        except UnavailableError:  # the answer may be lost; WrongBrokerError is one of these
            if attempt == TRIES - 1:
                raise
            await clock.sleep(PAUSE_SECONDS * rng.uniform(0.5, 1.5))
            continue
        if code is not ErrorCode.duplicate_sequence_number:  # stored by the run before
            require(code, None, f"{place[0]}:{place[1]}")
        return


def _send_one(
    cluster: KafkaCluster, place: TopicPartition, batch: SoundBatch, producer: tuple[int, int, int]
) -> ErrorCode:
    leader = partitions_of(cluster, [place[0]])[place]
    records, codec = decode_records(batch.data), Codec(batch.header.codec)
    code = produce_again(cluster, leader, place, records, codec, producer)
    if code.retriable:
        raise UnavailableError(f"not stored yet: {place[0]}:{place[1]} {code.name}")
    return code


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
