"""Deliberate bugs of the commit and the swap, put into the reference model, and of the sweeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, StagedBatch
from headrace.metastore.api.compaction import Swap
from headrace.metastore.api.read import Extent
from tests.model import metastore_model, producer_model
from tests.model.metastore_model import ModelMetastore
from tests.model.producer_model import ProducerState, RingEntry, last_sequence
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind
from tests.simulation.sweeper import Sweeper


@bug("W7", Kind.DUPLICATE)
def commit_is_not_idempotent(patch: Patch) -> None:
    """A file id that was committed is committed again."""

    def commit_file(self: ModelMetastore, node_id: int, epoch: int, file: FileCommit, appended: Any) -> FileAnswer:
        self.answers.pop(file.file_id, None)
        answer: FileAnswer = original(self, node_id, epoch, file, appended)
        return answer

    original = patch.replace(ModelMetastore, "_commit_file", commit_file)


@bug("W7", Kind.DUPLICATE)
def commit_is_idempotent_per_broker_epoch_only(patch: Patch) -> None:
    """An agent that registered again commits a second time the files with an unknown outcome."""
    epochs: dict[Any, int] = {}

    def commit_file(self: ModelMetastore, node_id: int, epoch: int, file: FileCommit, appended: Any) -> FileAnswer:
        if epochs.get(file.file_id, epoch) < epoch:
            self.answers.pop(file.file_id, None)
        epochs[file.file_id] = epoch
        answer: FileAnswer = original(self, node_id, epoch, file, appended)
        return answer

    original = patch.replace(ModelMetastore, "_commit_file", commit_file)


@bug("W7", Kind.SPURIOUS)
def ring_of_four(patch: Patch) -> None:
    """The last 4 batches are remembered, not 5."""
    patch.replace(producer_model, "REMEMBERED_BATCHES", 4)


@bug("W7", Kind.SPURIOUS, Kind.STUCK)
def sequences_wrap_one_too_early(patch: Patch) -> None:
    """2**31 - 1 is taken for the number of sequences, not for the last one."""
    patch.replace(producer_model, "SEQUENCES", 2**31 - 1)


@bug("W7", Kind.LOST, Kind.WRONG_ANSWER)
def sequence_is_checked_before_epoch(patch: Patch) -> None:
    """A batch of a new epoch is taken for the old epoch's batch of the same sequence."""

    def find(state: ProducerState | None, batch: StagedBatch) -> RingEntry | None:
        wanted = (batch.base_sequence, last_sequence(batch))
        ring = state.ring if state else []
        return next((entry for entry in ring if (entry.base_sequence, entry.last_sequence) == wanted), None)

    patch.replace(metastore_model, "find_duplicate", find)


@bug("W7", Kind.DISORDER, Kind.DUPLICATE)
def old_epoch_is_not_fenced(patch: Patch) -> None:
    """A late copy under an old epoch is appended behind the new epoch's batches."""

    _append_if(patch, lambda state, batch: state is not None and batch.producer_epoch < state.epoch)


@bug("W7", Kind.DISORDER)
def gap_is_folded_as_a_chain(patch: Patch) -> None:
    """A batch that comes too early is appended."""

    def comes_too_early(state: ProducerState | None, batch: StagedBatch) -> bool:
        is_same = state is not None and batch.producer_epoch == state.epoch
        return is_same and state is not None and batch.base_sequence > state.next_sequence

    _append_if(patch, comes_too_early)


@bug("W7", Kind.SPURIOUS)
def duplicate_is_answered_with_an_error(patch: Patch) -> None:
    """What was appended before is out of order."""
    patch.replace(metastore_model, "find_duplicate", lambda state, batch: None)


@bug("W8", Kind.DUPLICATE)
def duplicate_is_appended(patch: Patch) -> None:
    """What was appended before is appended again."""

    known = patch.replace(metastore_model, "find_duplicate", lambda state, batch: None)
    _append_if(patch, lambda state, batch: known(state, batch) is not None)


def _append_if(patch: Patch, is_wrong: Callable[[ProducerState | None, StagedBatch], bool]) -> None:
    """Such a batch is appended, also if the rule refuses it."""
    patch.wrap(
        metastore_model,
        "judge",
        lambda right: (
            lambda state, batch, id_expired: (
                BatchOutcome.APPENDED if is_wrong(state, batch) else right(state, batch, id_expired)
            )
        ),
    )


@bug("W7", Kind.WRONG_ANSWER)
def duplicate_is_answered_with_a_fresh_offset(patch: Patch) -> None:
    """A retry gets the offset that it would have got now."""
    _change_duplicates(patch, lambda answer, partition, batch: answer._replace(base_offset=partition.high_watermark))


@bug("W7", Kind.WRONG_ANSWER)
def duplicate_is_answered_with_its_own_time(patch: Patch) -> None:
    """A retry gets its own time of append, not the first copy's."""
    _change_duplicates(patch, lambda answer, partition, batch: answer._replace(append_time_ms=batch.max_timestamp))


def _change_duplicates(patch: Patch, change: Any) -> None:
    def changed(self: ModelMetastore, answer: BatchAnswer, batch: StagedBatch, _: Any) -> BatchAnswer:
        is_duplicate = answer.outcome is BatchOutcome.DUPLICATE
        return change(answer, self.partitions[batch.partition_key], batch) if is_duplicate else answer

    _after_each_batch(patch, changed)


def _after_each_batch(patch: Patch, change: Callable[..., BatchAnswer]) -> None:
    """`change` makes the answer of the model, the right answer, the batch and the file's open extents."""

    def commit_batch(
        self: ModelMetastore, file_id: Any, batch: StagedBatch, open_extents: Any, appended: Any
    ) -> BatchAnswer:
        return change(self, original(self, file_id, batch, open_extents, appended), batch, open_extents)

    original = patch.replace(ModelMetastore, "_commit_batch", commit_batch)


@bug("W4", Kind.GAP)
def offsets_have_holes(patch: Patch) -> None:
    """A refused batch uses up an offset."""

    def use_one_up(self: ModelMetastore, answer: BatchAnswer, batch: StagedBatch, _: Any) -> BatchAnswer:
        self.partitions[batch.partition_key].high_watermark += answer.outcome is BatchOutcome.OUT_OF_ORDER
        return answer

    _after_each_batch(patch, use_one_up)


@bug("W8", Kind.UNACCOUNTED)
def extent_covers_a_dead_batch(patch: Patch) -> None:
    """Live batches on both sides of a duplicate become one extent, the duplicate with them."""

    def extend(self: ModelMetastore, file_id: Any, batch: StagedBatch, base: int, opened: Any, appended: Any) -> None:
        before: Extent | None = opened.get(batch.partition_key)
        if before is not None:
            opened[batch.partition_key] = before._replace(length=batch.position - before.position)
        original(self, file_id, batch, base, opened, appended)

    original = patch.replace(ModelMetastore, "_extend", extend)


@bug("W8", Kind.UNACCOUNTED)
def extent_is_one_batch_too_long(patch: Patch) -> None:
    """A dead batch behind the last live one falls into its extent."""

    def lengthen(
        self: ModelMetastore, answer: BatchAnswer, batch: StagedBatch, open_extents: dict[int, Extent]
    ) -> BatchAnswer:
        extent = open_extents.get(batch.partition_key)
        if answer.outcome is BatchOutcome.DUPLICATE and extent is not None:
            end = batch.position + batch.length
            open_extents[batch.partition_key] = extent._replace(length=end - extent.position)
        return answer

    _after_each_batch(patch, lengthen)


@bug("W7", Kind.DUPLICATE, Kind.LOST, Kind.SPURIOUS)
def producer_ids_are_handed_out_twice(patch: Patch) -> None:
    """Every agent gets the same block of producer ids."""

    async def allocate(self: ModelMetastore, count: int) -> range:
        return range(1000, 1000 + count)

    patch.replace(ModelMetastore, "allocate_producer_ids", allocate)


@bug("W7", Kind.SPURIOUS)
def replaced_topic_knows_no_producer(patch: Patch) -> None:
    """Producers of a deleted topic cannot continue in the next topic of its name."""
    patch.replace(metastore_model, "goes_on", lambda before, batch: False)


@bug("W1", Kind.LOST)
def deleted_topic_takes_batches(patch: Patch) -> None:
    """Partitions remain after their topic was deleted."""

    def delete_topic(self: ModelMetastore, topic_number: int) -> None:
        kept = dict(self.partitions)
        count = self.partition_counts[topic_number]
        original(self, topic_number)
        self.partitions.update(kept)
        self.partition_counts[topic_number] = count

    original = patch.replace(ModelMetastore, "delete_topic", delete_topic)


@bug("W1", Kind.UNSTORED, Kind.UNACCOUNTED)
def sweeper_does_not_condemn(patch: Patch) -> None:
    """An object that no row names is deleted, and its id may still be committed."""
    patch.replace(Sweeper, "_condemn", lambda self, file_id: file_id not in self._world.database.model.answers)


@bug("W5", Kind.UNACCOUNTED, Kind.UNSEEN)
def sweeper_goes_by_its_list_only(patch: Patch) -> None:
    """All listed objects are deleted, without asking the metastore."""
    patch.replace(Sweeper, "clean", lambda self, file_id: self._world.bucket.remove(file_id))


@bug("W4", Kind.INCONSISTENT, Kind.WRONG_ANSWER, Kind.GAP, Kind.UNACCOUNTED)
def two_files_get_the_same_offsets(patch: Patch) -> None:
    """Files of one call are ordered as if each were alone."""

    async def commit_files(self: ModelMetastore, node_id: int, epoch: int, files: Sequence[FileCommit]) -> Any:
        before = {key: partition.high_watermark for key, partition in self.partitions.items()}
        answers: list[FileAnswer] = []
        for file in files:
            for key, mark in before.items() if answers else ():
                if key in self.partitions:
                    self.partitions[key].high_watermark = mark
            answers += await original(self, node_id, epoch, [file])
        return answers

    original = patch.replace(ModelMetastore, "commit_files", commit_files)


@bug("W5", Kind.GAP, Kind.LOST, Kind.UNSEEN)
def swap_drops_an_extent(patch: Patch) -> None:
    """An extent of several partitions' swaps the last one takes the old extents away and puts
    nothing in their place.
    """

    def decide(self: ModelMetastore, file_id: Any, swaps: Sequence[Swap], *closed: Any) -> Any:
        outcomes, extents = original(self, file_id, swaps, *closed)
        for extent in extents[1:][-1:]:
            self.partitions[extent.partition_key].extents.remove(extent)
        return outcomes, extents

    original = patch.replace(ModelMetastore, "decide_swaps", decide)


@bug("W5", Kind.GAP, Kind.UNACCOUNTED)
def swap_does_not_look_whether_its_inputs_stand(patch: Patch) -> None:
    """Another merge of the same extents was first; both remain."""
    patch.replace(ModelMetastore, "_stands", lambda self, swap: swap.partition_key in self.partitions)


@bug("W5", Kind.GAP, Kind.UNACCOUNTED, Kind.DUPLICATE)
def swap_that_comes_again_is_done_again(patch: Patch) -> None:
    """It counts as one with inputs that retention has removed."""

    def stands(self: ModelMetastore, swap: Swap) -> bool:
        partition = self.partitions.get(swap.partition_key)
        lasts = {entry.last_offset for entry in swap.inputs}
        there = partition is not None and any(extent.last_offset in lasts for extent in partition.extents)
        return bool(original(self, swap)) or (partition is not None and not there)

    original = patch.replace(ModelMetastore, "_stands", stands)
    forget_answers_of_swaps(patch)


def forget_answers_of_swaps(patch: Patch) -> None:
    """A repeated call is judged again."""

    def decide(self: ModelMetastore, *asked: Any) -> Any:
        self.swap_answers.clear()
        return original(self, *asked)

    original = patch.replace(ModelMetastore, "decide_swaps", decide)


@bug("W1", Kind.UNACCOUNTED, Kind.UNSEEN)
def merged_file_may_still_be_condemned(patch: Patch) -> None:
    """The sweeper looks for commits only."""

    def condemn(self: ModelMetastore, file_id: Any) -> bool:
        if file_id in self.answers:
            return False
        self.condemned.add(file_id)
        return True

    def clean(self: Sweeper, file_id: Any) -> None:
        if file_id in self._world.database.model.merged:
            self.take(file_id)
        original(self, file_id)

    patch.replace(ModelMetastore, "condemn", condemn)
    original = patch.replace(Sweeper, "clean", clean)
