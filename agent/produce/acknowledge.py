"""Answers: what became of each batch goes to the request that waits for it.

Place: last step of the write path, after a commit's answer, a failure for good, or a deadline.
Invariant: a batch is acknowledged only by a commit's own answer. "Not stored" is said only of
batches that certainly are not; what is in doubt stays REQUEST_TIMED_OUT. When a batch fails for
good, the batches of its stream that were buffered or flushed behind it fail with it, so that a
client that repeats them all repeats them in order.
If the process dies here the data is stored, the client repeats it, and the producer's sequence
numbers turn the repetition into a duplicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from kio.schema.errors import ErrorCode

from headrace.agent.produce.buffer import ActiveBuffer
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.order import FlushOrder
from headrace.agent.produce.pending import Refusal, not_stored
from headrace.agent.produce.staged_file import Arrival, FileTrace, Staged, StagedFile, Stream
from headrace.metastore.values import BatchAnswer, BatchOutcome
from headrace.protocol.errors import batch_error
from headrace.storage.clock import Clock

log = logging.getLogger(__name__)

ABANDON_AFTER_S = 5.0
"""A file that is held up this long, and that nobody waits for any more, is not stored or committed."""
_RETRIABLE = frozenset({BatchOutcome.LEADER_EPOCH_MISMATCH, BatchOutcome.PARTITION_COUNT_MISMATCH})
"""Refusals of a commit after which the client sends the same batch again."""


class Acknowledger:
    """Settles files. `is_idle` is set while no file is unsettled; `progress` is called when files behind one may go."""

    def __init__(
        self,
        order: FlushOrder,
        buffer: ActiveBuffer,
        clock: Clock,
        metrics: ProduceMetrics,
        *,
        log_start_offset: Callable[[int], int],
        on_settled: Callable[[FileTrace], None],
        progress: Callable[[], None],
    ) -> None:
        self._order = order
        self._buffer = buffer
        self._clock = clock
        self._metrics = metrics
        self._log_start_offset = log_start_offset
        self._on_settled = on_settled
        self._progress = progress
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def committed(self, file: StagedFile, answers: Sequence[BatchAnswer]) -> None:
        """The metastore judged the file's batches; `answers[i]` is for the i-th of `file.batches()`."""
        appended = duplicates = 0
        fallen: dict[Stream, Refusal] = {}
        judged = iter(answers)
        for entry in file.staged:
            if not entry.records_before:
                outcome, base_offset, append_time_ms = next(judged)
            if outcome is BatchOutcome.APPENDED or outcome is BatchOutcome.DUPLICATE:
                reply = entry.reply
                reply.error_code = 0
                reply.base_offset = base_offset + entry.records_before
                if base_offset or outcome is BatchOutcome.DUPLICATE:
                    reply.log_start_offset = self._log_start_offset(entry.batch.partition_key)
                else:  # the first record of all: the log starts here, heard of or not
                    reply.log_start_offset = 0
                if entry.is_log_append_time:
                    reply.log_append_time_ms = append_time_ms
                duplicates += outcome is BatchOutcome.DUPLICATE
                appended += outcome is BatchOutcome.APPENDED
                entry.request.judged()
            else:
                refusal = _refusal_of(outcome, entry)
                self._refuse((entry,), refusal)
                if outcome in _RETRIABLE:
                    fallen[entry.stream] = refusal
        self._metrics.batches.inc(appended)
        self._metrics.duplicates.inc(duplicates)
        for stream, refusal in fallen.items():
            self._refuse_behind(file, {stream}, refusal)
        file.trace.is_committed = True
        self._settle(file)

    def failed(self, file: StagedFile, refusal: Refusal) -> None:
        """The file is not committed and never will be."""
        log.warning("file failed: batches=%d bytes=%d %s", file.trace.batch_count, file.size_bytes, refusal.message)
        self._refuse(file.remove(file.streams), refusal)
        self._refuse_behind(file, file.streams, refusal)
        self._settle(file)

    def left_unknown(self, file: StagedFile) -> None:
        """Nobody will ever know whether the file was committed; its batches stay REQUEST_TIMED_OUT."""
        log.warning("outcome stays unknown: file_id=%s batches=%d", file.file_id, len(file.staged))
        for entry in file.staged:
            entry.request.judged()
        self._settle(file)

    def drop_if_unwanted(self, file: StagedFile) -> bool:
        """Settle a file whose batches were all answered, or that nobody has waited for in a while.

        Not for a file whose commit was sent: that one may have happened.
        """
        if file.is_empty:
            self._settle(file)
            return True
        if self._clock.monotonic() - file.trace.closed_at > ABANDON_AFTER_S and file.nobody_waits:
            self.failed(file, not_stored("every request timed out before the file could be committed"))
            return True
        return False

    def expire(self) -> None:
        """Answer the requests whose deadline has passed."""
        now = self._clock.monotonic()
        files = [*self._order, self._buffer.file] if self._buffer.file else list(self._order)
        late = sum(file.expire(now) for file in files)
        if late:
            log.warning("requests timed out: requests=%d files_in_flight=%d", late, len(self._order))
            self._metrics.timed_out.inc(late)

    def _refuse(self, entries: Sequence[Arrival | Staged], refusal: Refusal) -> None:
        for entry in entries:
            refusal.write_to(entry.reply)
            entry.request.judged()
        if entries:
            self._metrics.count_refused(refusal, len(entries))

    def _refuse_behind(self, file: StagedFile, streams: Set[Stream], refusal: Refusal) -> None:
        """Files whose commit was sent are out of reach: their own answer decides.

        A merged batch takes along the streams that it held, so these fall in the files behind it too.
        """
        fallen = set(streams)
        later = self._order.behind(file)
        if self._buffer.file is not None:
            later.append(self._buffer.file)
        for behind in later:
            if behind.commit is None:
                removed = behind.remove(fallen)
                fallen.update(entry.stream for entry in removed)
                self._refuse(removed, refusal)

    def _settle(self, file: StagedFile) -> None:
        self._order.settle(file)
        file.staged = []
        file.trace.settled_at = self._clock.monotonic()
        self._metrics.settled(file.trace)
        if not self._order:
            self.is_idle.set()
        self._progress()
        self._on_settled(file.trace)


def _refusal_of(outcome: BatchOutcome, entry: Staged) -> Refusal:
    code = batch_error(outcome)
    if outcome is BatchOutcome.UNKNOWN_PARTITION and entry.request.by_id:
        code = int(ErrorCode.unknown_topic_id)
    batch = entry.batch
    producer = f" producer_id={batch.producer_id} sequence={batch.base_sequence}" if batch.producer_id >= 0 else ""
    return Refusal(code, f"refused at commit: {outcome.name.lower()}{producer}")
