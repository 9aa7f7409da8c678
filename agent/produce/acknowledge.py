"""Answers: what became of each batch goes to the request that waits for it.

Place: last step of the write path, after a commit's answer, a failure for good, or a deadline.
Invariant: a batch is acknowledged only by a commit's own answer. "Not stored" is said only of
batches that certainly are not; what is in doubt stays REQUEST_TIMED_OUT. When a batch fails for
good, the batches of its stream that were buffered or flushed behind it fail with it, so that a
client that repeats them all repeats them in order.
If the process ends here the data is stored and not acknowledged: the client sends it again, and the
producer's sequence numbers make it a duplicate.
The commit's OUT_OF_ORDER is answered with the retriable error if this agent lately refused an earlier batch of the
producer, or if that one may be on its way through another agent (refused_sequences.py): the batch is "not stored", too,
and is accepted once the earlier one is stored. The same is true if the file with the earlier one has no answer yet:
an agent may be fenced before it repeats a call of unknown outcome, and then what that call committed has its answer
before the rest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence, Set

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.files import CommittingFile, FileTrace, FlushedFile, FlushQueue
from headrace.agent.produce.flusher import ActiveBuffer, OpenFile
from headrace.agent.produce.last_stored import LastStored
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.refused_sequences import RefusedSequences
from headrace.agent.produce.requests import Arrival, PlacedBatch, Refusal, Stream, not_stored
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome
from headrace.metastore.keys import split_partition_key
from headrace.protocol.errors import SENT_AGAIN, batch_error
from headrace.storage.clock import Clock
from headrace.storage.repetition import LIMITED, Repetitions

log = logging.getLogger(__name__)

SLOW_LINES = 5
"""Lines about slow files per minute."""

ABANDON_AFTER_S = 5.0
"""A file that is delayed this long, and that no request waits for any more, is not stored or committed."""
_RETRIABLE = frozenset(
    {
        BatchOutcome.LEADER_EPOCH_MISMATCH,
        BatchOutcome.PARTITION_COUNT_MISMATCH,
        BatchOutcome.PARTITION_MARKED,
        BatchOutcome.SENT_BACK,
    }
)
"""Refusals of a commit after which the client sends the same batch again."""


class Acknowledger:
    """Answers requests and settles files. It finds the files behind a failed one in the queue and in the buffer."""

    def __init__(
        self,
        queue: FlushQueue,
        buffer: ActiveBuffer,
        view: ClusterView,
        clock: Clock,
        metrics: ProduceMetrics,
        refused: RefusedSequences,
        callbacks: Callbacks,
        *,
        slow_ms: int,
    ) -> None:
        """`slow_ms`: slow.request.ms."""
        self._slow_seconds = slow_ms / 1000 if slow_ms else math.inf
        self._slow_files = Repetitions(lines=SLOW_LINES)
        self._queue = queue
        self._buffer = buffer
        self._clock = clock
        self._metrics = metrics
        self._refused = refused
        self._last_stored = LastStored(clock, view)
        self._view, self._callbacks = view, callbacks

    @property
    def remembered_bytes(self) -> int:
        """What it remembers of how the last batches of producers came."""
        return self._last_stored.held_bytes

    def committed(self, file: FlushedFile, answers: Sequence[BatchAnswer]) -> None:
        """The metastore judged the file's batches; `answers[i]` is for the i-th batch of its commit."""
        appended = duplicates = 0
        fallen: dict[Stream, Refusal] = {}
        judged = iter(answers)
        assert isinstance(file.stage, CommittingFile), "only a call's answer commits"
        for entry in file.stage.entries:
            if not entry.records_before:
                answer = next(judged)
                outcome, base_offset, append_time_ms = answer[:3]
                if outcome is BatchOutcome.APPENDED:
                    self._callbacks.count_received(
                        entry.batch.partition_key, entry.batch.length, entry.batch.record_count
                    )
            if outcome is BatchOutcome.APPENDED or outcome is BatchOutcome.DUPLICATE:
                reply = entry.reply
                reply.error_code = 0
                reply.base_offset = base_offset + entry.records_before
                if base_offset or outcome is BatchOutcome.DUPLICATE:
                    reply.log_start_offset = self._callbacks.log_start_offset(entry.batch.partition_key)
                else:  # the first record of all: the log starts here, learned of or not
                    reply.log_start_offset = 0
                if entry.is_log_append_time:
                    reply.log_append_time_ms = append_time_ms
                duplicates += outcome is BatchOutcome.DUPLICATE
                appended += outcome is BatchOutcome.APPENDED
                entry.request.judged()
                self._end_notes(entry, is_appended=outcome is BatchOutcome.APPENDED)
            elif outcome is BatchOutcome.OUT_OF_ORDER and (reason := self._explanation(file, entry, answer)):
                self._answer((entry,), not_stored(f"{reason}{_producer_of(entry)}"))
            else:
                if outcome is BatchOutcome.DUPLICATE_SEQUENCE:
                    self._end_notes(entry, is_appended=False)
                refusal = _refusal_of(outcome, entry)
                if outcome is BatchOutcome.MOVED_KEY:
                    self._metrics.count_moved_keys(_topic_name(self._view, entry.batch.partition_key))
                self._refuse((entry,), refusal)
                if outcome in _RETRIABLE:
                    fallen[entry.stream] = refusal
        self._metrics.batches.inc(appended)
        self._metrics.duplicates.inc(duplicates)
        for stream, refusal in fallen.items():
            self._refuse_behind(file, {stream}, refusal)
        file.trace.is_committed = True
        self._settle(file)

    def failed(self, file: FlushedFile, refusal: Refusal) -> None:
        """The file is not committed and never will be."""
        log.warning(
            "file failed: batches=%d bytes=%d %s", file.trace.batch_count, file.trace.size_bytes, refusal.message
        )
        self._refuse(file.stage.entries, refusal)
        self._refuse_behind(file, file.streams, refusal)
        self._settle(file)

    def left_unknown(self, file: FlushedFile) -> None:
        """It stays unknown whether the file was committed; its batches stay REQUEST_TIMED_OUT."""
        assert isinstance(file.stage, CommittingFile), "only a call leaves something unknown"
        log.warning("outcome stays unknown: file_id=%s batches=%d", file.stage.commit.file_id, len(file.stage.entries))
        for entry in file.stage.entries:
            entry.request.judged()
            self._note(entry)
        self._settle(file)

    def drop_if_unwanted(self, file: FlushedFile) -> bool:
        """Settle a file if all its batches were answered, or if no request has waited for it in a while.

        Not for a file that was sent in a commit: that commit may have happened.
        """
        if not file.stage.entries:
            self._settle(file)
            return True
        if self._clock.monotonic() - file.trace.closed_at > ABANDON_AFTER_S and file.waiting.all_answered:
            self.failed(file, not_stored("every request timed out before the file could be committed"))
            return True
        return False

    def expire(self) -> None:
        """Answer the requests that are past their deadline."""
        now = self._clock.monotonic()
        self._refused.expire(now)
        files: list[FlushedFile | OpenFile] = [*self._queue.files, *self._buffer.files]
        late = sum(file.waiting.expire(now) for file in files)
        if late:
            log.warning("requests timed out: requests=%d files_in_flight=%d", late, len(self._queue.files))
            self._metrics.timed_out.inc(late)

    def _refuse(self, entries: Sequence[Arrival] | Sequence[PlacedBatch], refusal: Refusal) -> None:
        self._answer(entries, refusal)
        if refusal.code in SENT_AGAIN:
            for entry in entries:
                self._note(entry)

    def _note(self, entry: Arrival | PlacedBatch) -> None:
        """Remember a batch that the client sends again: those behind it are out of order until then."""
        if (numbered := entry.numbered) is not None:
            self._refused.note(numbered, self._clock.monotonic())

    def _end_notes(self, entry: PlacedBatch, *, is_appended: bool) -> None:
        """Forget that the batch, or an earlier one, was refused: it is stored. Remember how it came."""
        if entry.owner < 0:
            return
        self._last_stored.note(entry, is_appended=is_appended)
        if self._refused and (numbered := entry.numbered) is not None:
            self._refused.stored(numbered)

    def _explanation(self, file: FlushedFile, entry: PlacedBatch, answer: BatchAnswer) -> str | None:
        """Return why the batch is out of order for now only; None if it stays so."""
        if (numbered := entry.numbered) is None:
            return None
        now = self._clock.monotonic()
        if any(entry.stream in before.streams for before in file.predecessors):
            self._refused.note(numbered, now)
            return "an earlier batch of the producer has no answer yet"
        if self._refused.explain(numbered, now):
            self._refused.see_gap(numbered, now, missing=answer.next_sequence)
            return "an earlier batch of the producer was refused"
        is_settled = self._last_stored.is_settled(entry, answer)
        if self._refused.explain_by_another_agent(numbered, now, missing=answer.next_sequence, is_settled=is_settled):
            return "an earlier batch of the producer may be on its way through another agent"
        return None

    def _answer(self, entries: Sequence[Arrival] | Sequence[PlacedBatch], refusal: Refusal) -> None:
        for entry in entries:
            refusal.write_to(entry.reply)
            entry.request.judged()
        if entries:
            self._metrics.count_refused(refusal, len(entries))

    def _refuse_behind(self, file: FlushedFile, streams: Set[Stream], refusal: Refusal) -> None:
        """Files that were sent in a commit keep their batches: the answer to that commit decides.

        A merged batch takes along the streams that it held, so these fall in the files behind it too.
        """
        fallen = set(streams)
        for behind in self._queue.behind(file):
            dropped = behind.drop(fallen)
            fallen.update(entry.stream for entry in dropped)
            self._refuse(dropped, refusal)
        for each in self._buffer.files:
            self._refuse(each.drop(fallen), refusal)

    def _settle(self, file: FlushedFile) -> None:
        trace = file.trace
        trace.settled_at = self._clock.monotonic()
        self._queue.settle(file)
        if trace.settled_at - trace.opened_at >= self._slow_seconds:
            self._report_slow(trace)

    def _report_slow(self, trace: FileTrace) -> None:
        """Say where the time of a file's requests went; a step that did not happen has no time (nan)."""
        left_out = self._slow_files.left_out("", trace.settled_at)
        if left_out is not None:
            log.warning(
                "slow file: seconds=%.1f buffer_seconds=%.1f put_seconds=%.1f wait_for_commit_seconds=%.1f"
                " commit_seconds=%.1f commit_calls=%d committed=%s batches=%d bytes=%d left_out=%d",
                trace.settled_at - trace.opened_at,
                trace.closed_at - trace.opened_at,
                trace.stored_at - trace.put_started_at,
                trace.commit_started_at - trace.stored_at,
                trace.committed_at - trace.commit_started_at,
                trace.commit_calls,
                trace.is_committed,
                trace.batch_count,
                trace.size_bytes,
                left_out,
                extra=LIMITED,
            )


def _refusal_of(outcome: BatchOutcome, entry: PlacedBatch) -> Refusal:
    code = batch_error(outcome, entry.request.version if entry.batch.transaction else -1)
    if outcome is BatchOutcome.UNKNOWN_PARTITION and entry.request.by_id:
        code = int(ErrorCode.unknown_topic_id)
    return Refusal(code, f"refused at commit: {outcome.name.lower()}{_producer_of(entry)}")


def _producer_of(entry: PlacedBatch) -> str:
    batch = entry.batch
    return f" producer_id={batch.producer_id} sequence={batch.base_sequence}" if batch.producer_id >= 0 else ""


def _topic_name(view: ClusterView, partition_key: int) -> str:
    """Return the topic's name for metrics; empty if the topic is gone."""
    topic = view.image.topics_by_number.get(split_partition_key(partition_key)[0])
    return "" if topic is None else topic.name
