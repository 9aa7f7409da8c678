"""Invariants of the log and of every stored byte, for all behaviour of clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.keys import split_partition_key
from tests.simulation.check_lives import lost_commits
from tests.simulation.messages import SEQUENCES, Batch
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind, Problem
from tests.simulation.reading import Entry

if TYPE_CHECKING:
    from tests.simulation.stored_log import StoredLog
    from tests.simulation.world import World


def check_stored(world: World, log: StoredLog) -> Iterator[Problem]:
    """Offsets, duplicates, sequences, and the account of bytes."""
    for place, entries in log.entries.items():
        yield from _check_offsets(world, place, entries)
        yield from _check_sequences(world, place, entries)
    for (batch, place), entries in log.found.items():
        if place.topic is not batch.place.topic or place.index != batch.place.index:
            yield Problem(Kind.INCONSISTENT, f"{batch} is stored in {place}")
        if len(entries) > 1 and not _may_stand_twice(batch):
            yield Problem(Kind.DUPLICATE, f"{batch} is stored at {[entry.base_offset for entry in entries]}")
    yield from _check_deleted_topics(world)
    yield from _check_bytes(world)


def _check_offsets(world: World, place: Place, entries: Sequence[Entry]) -> Iterator[Problem]:
    expected = 0
    for entry in entries:
        if entry.base_offset != expected:
            yield Problem(Kind.GAP, f"{place}: {entry.base_offset} where {expected} comes next")
        expected = entry.last_offset + 1
    if expected != world.end_of(place):
        yield Problem(Kind.GAP, f"{place}: ends at {expected}, high watermark {world.end_of(place)}")


def _check_sequences(world: World, place: Place, entries: Sequence[Entry]) -> Iterator[Problem]:
    """Check the sequences of each producer: epochs rise, and inside an epoch every sequence follows the one before
    it.
    """
    state: dict[int, tuple[int, int]] = {}
    for entry in entries:
        producer_id, epoch, sequence = entry.identity
        if producer_id < 0:
            continue
        first = world.first_sequences.get((producer_id, place.key), (0, 0))
        if producer_id not in state and (epoch, sequence) in _after_deletion(world, place, producer_id, first):
            first = epoch, sequence
        last_epoch, expected = state.get(producer_id, first)
        if epoch > last_epoch:
            expected = 0
        if epoch < last_epoch or sequence != expected:
            yield Problem(
                Kind.DISORDER,
                f"{place}:{entry.base_offset} {entry.batch} epoch={epoch} sequence={sequence}"
                f" after epoch={last_epoch}, expected sequence={expected}",
            )
        state[producer_id] = (epoch, (sequence + entry.batch.count) % SEQUENCES)


def _after_deletion(world: World, place: Place, producer_id: int, first: tuple[int, int]) -> set[tuple[int, int]]:
    """Return what else than `first` may be first of a producer in a topic that was created again.

    It sent again, from `first` on, what the deleted topic of the name had stored without its answer. If it gave a batch
    up that is in the deleted topic only, or a failover lost all that this topic had of it, the partition does not know
    the producer, which continues where it ended in the deleted topic.
    """
    named = [topic for topic in world.metadata.topics if topic.name == place.topic.name]
    earlier = {topic.key(place.index) for topic in named if topic.number < place.topic.number}
    if not earlier:
        return set()
    lost = lost_commits(world)
    elsewhere = [committed for committed in (*world.database.journal, *lost) if committed.key in earlier]
    stored = {
        committed.identity: committed.batch.count
        for committed in (*elsewhere, *(committed for committed in lost if committed.key == place.key))
        if committed.outcome is BatchOutcome.APPENDED
    }
    epoch, sequence = first
    after: set[tuple[int, int]] = set()
    while (count := stored.pop((producer_id, epoch, sequence), None)) is not None:
        sequence = (sequence + count) % SEQUENCES
        after.add((epoch, sequence))
    if _is_all_else_given_up(world, place, producer_id, first):
        after.add((first[0], 0))
    return after


def _is_all_else_given_up(world: World, place: Place, producer_id: int, first: tuple[int, int]) -> bool:
    """Return whether a producer sent to this topic no sequence from before they began again at 0.

    It was to send the batches from `first` on again here, and gave up those before sequence 0, because they were too
    old: the partition does not know the producer, and 0 begins its batches, as on Kafka.
    """
    return not any(
        attempt.producer_id == producer_id and attempt.epoch == first[0] and attempt.sequence >= first[1]
        for batch in world.messages.batches
        if batch.place == place
        for attempt in batch.attempts
    )


def _may_stand_twice(batch: Batch) -> bool:
    """A producer that bumps its epoch sends what is unresolved under a new identity.

    If the older one was neither refused for certain nor fenced, both may be appended: so in Kafka.
    """
    epochs = {attempt.epoch for attempt in batch.attempts if not attempt.is_refused}
    return len(epochs) > 1


def _check_deleted_topics(world: World) -> Iterator[Problem]:
    """Nothing is appended to a topic that is gone."""
    deleted = {topic.number: topic.deleted_at for topic in world.metadata.topics if topic.deleted_at is not None}
    for committed in world.database.journal:
        number, _ = split_partition_key(committed.key)
        if committed.outcome is BatchOutcome.APPENDED and committed.at > deleted.get(number, committed.at):
            yield Problem(Kind.LOST, f"appended to a deleted topic: {committed.batch}")


def _check_bytes(world: World) -> Iterator[Problem]:
    """After the last sweep: a file is committed, a live batch is in one extent, a dead one in none."""
    model = world.database.model
    extents = [
        (extent.file_id, extent.position, extent.position + extent.length, extent.partition_key)
        for partition in model.partitions.values()
        for extent in partition.extents
    ]
    for file_id in world.bucket.file_ids():
        if file_id not in model.answers and file_id not in model.merged:
            yield Problem(Kind.UNACCOUNTED, f"stored, not committed, not swept: file={file_id}")
        elif not any(extent[0] == file_id for extent in extents):
            yield Problem(Kind.UNACCOUNTED, f"nothing of it is live, not swept: file={file_id}")
    removed = {(place.key, e.base_offset) for place, entries in world.database.removed.items() for e in entries}
    for committed in world.database.journal:
        if committed.key not in model.partitions:
            continue
        start, end = committed.position, committed.position + committed.length
        holders = [e for e in extents if e[0] == committed.file_id and e[1] < end and start < e[2]]
        whole = [e for e in holders if e[1] <= start and end <= e[2] and e[3] == committed.key]
        is_removed = (committed.key, committed.base_offset) in removed
        is_live = committed.outcome is BatchOutcome.APPENDED and not is_removed
        if len(holders) != is_live or len(whole) != is_live:
            what = "live" if is_live else "dead"
            yield Problem(Kind.UNACCOUNTED, f"{what} {committed.batch} is in {len(holders)} extents: {committed}")
