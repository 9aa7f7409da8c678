"""Deliberate bugs of the write path."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.produce import flusher, pipeline, upload
from headrace.agent.produce.acknowledge import Acknowledger
from headrace.agent.produce.commit import Committer
from headrace.agent.produce.files import FlushedFile, FlushQueue, FlushReason, LaidOutFile
from headrace.agent.produce.flush_policy import FlushPolicy, FlushVerdict, Situation
from headrace.agent.produce.requests import PendingRequest, not_stored
from headrace.agent.produce.upload import Uploader
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileStatus
from headrace.protocol.produce_codec import refuse
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.retrying import RetryingStore
from tests.patch import Patch
from tests.simulation.bucket import BucketLine
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W3", Kind.EARLY, Kind.LOST)
def acknowledged_before_commit(patch: Patch) -> None:
    """Producers are answered when the commit is sent."""

    async def call(self: Committer, files: list[FlushedFile]) -> Any:
        for entry in (entry for file in files for entry in file.stage.entries):
            entry.reply.error_code = 0
            entry.request.answer()
        return await original(self, files)

    original = patch.replace(Committer, "_call", call)


@bug("W3", Kind.UNSTORED)
def committed_although_not_stored(patch: Patch) -> None:
    """A put that failed counts as stored."""

    async def upload_file(self: Uploader, file: FlushedFile, is_unwanted: Any) -> None:
        try:
            await original(self, file, is_unwanted)
        except HeadraceError:
            assert isinstance(file.stage, LaidOutFile)
            file.stage = file.stage.stored()

    original = patch.replace(Uploader, "upload", upload_file)


@bug("W3", Kind.UNSTORED)
def retry_sends_an_empty_body(patch: Patch) -> None:
    """The second attempt of a put sends a stream that the first one consumed, and the length is not checked."""

    async def put(self: RetryingStore, key: str, body: bytes, *, if_absent: bool = False) -> Any:
        stream = [body]

        async def attempt() -> Any:
            info = await self._inner.put(key, stream.pop() if stream else b"")
            return dataclasses.replace(info, size=len(body))

        return await self._attempts("put", key, attempt)

    patch.replace(RetryingStore, "put", put)


@bug("W3", Kind.UNSTORED)
def length_sent_is_taken_for_length_stored(patch: Patch) -> None:
    """A put answers with our own length, not the bucket's."""

    async def put(self: BucketLine, key: str, body: bytes, *, if_absent: bool = False) -> Any:
        return dataclasses.replace(await original(self, key, body), size=len(body))

    original = patch.replace(BucketLine, "put", put)


@bug("W4", Kind.DISORDER)
def committed_out_of_flush_order(patch: Patch) -> None:
    """The file that is stored first is committed first."""

    def append(self: FlushQueue, file: FlushedFile) -> None:
        original(self, file)
        file.predecessors.clear()

    original = patch.replace(FlushQueue, "append", append)


@bug("W4", Kind.DISORDER)
def predecessor_in_doubt_is_overtaken(patch: Patch) -> None:
    """Files continue while the one before them may still be committed, or not."""

    def doubt(self: Committer, group: list[FlushedFile]) -> None:
        original(self, group)
        for file in list(self._queue.files):
            file.predecessors.difference_update(group)

    original = patch.replace(Committer, "_doubt", doubt)


@bug("W4", Kind.SUCCESSOR)
def successors_of_a_failed_file_are_accepted(patch: Patch) -> None:
    """A file fails finally, and the batches behind it are stored."""
    patch.replace(Acknowledger, "_refuse_behind", lambda self, file, streams, refusal: None)


@bug("W7", Kind.PHANTOM)
def unknown_outcome_is_called_not_stored(patch: Patch) -> None:
    """A commit with a lost response fails its producers with an error that says "not stored"."""

    def doubt(self: Committer, group: list[FlushedFile]) -> None:
        for file in group:
            self._acknowledger.failed(file, not_stored("answer lost"))

    patch.replace(Committer, "_doubt", doubt)


@bug("W1", Kind.STUCK)
def doubt_is_dropped(patch: Patch) -> None:
    """A commit with a lost response is not repeated."""
    patch.replace(Committer, "_doubt", lambda self, group: self._back_off())


@bug("W1", Kind.CRASHED)
def duplicate_breaks_the_write_path(patch: Patch) -> None:
    """The answer to a duplicate raises an unexpected exception."""

    def committed(self: Acknowledger, file: FlushedFile, answers: Sequence[BatchAnswer]) -> None:
        if any(answer.outcome is BatchOutcome.DUPLICATE for answer in answers):
            raise KeyError("outcome")
        original(self, file, answers)

    original = patch.replace(Acknowledger, "committed", committed)


@bug("W7", Kind.PHANTOM)
def timeout_is_called_not_stored(patch: Patch) -> None:
    """A timed-out request gets KAFKA_STORAGE_ERROR although its batches continue."""

    def init(self: PendingRequest, produce: Any, **rest: Any) -> None:
        original(self, produce, **rest)
        self.reply = refuse(produce, int(ErrorCode.kafka_storage_error))

    original = patch.replace(PendingRequest, "__init__", init)


@bug("W1", Kind.PHANTOM, Kind.DUPLICATE, Kind.DISORDER)
def fenced_while_in_doubt_is_called_not_stored(patch: Patch) -> None:
    """A file in doubt is given up when the agent turns out to be fenced."""

    def settle(self: Committer, group: list[FlushedFile], answers: Sequence[FileAnswer]) -> None:
        given_up = [
            answer.status is FileStatus.AGENT_FENCED and file.in_doubt
            for file, answer in zip(group, answers, strict=True)
        ]
        if any(given_up):
            self._callbacks.on_fenced()
        original(
            self,
            group,
            [
                FileAnswer(answer.file_id, FileStatus.CONDEMNED) if hopeless else answer
                for answer, hopeless in zip(answers, given_up, strict=True)
            ],
        )

    original = patch.replace(Committer, "_settle", settle)


@bug("W7", Kind.WRONG_ANSWER, Kind.PHANTOM)
def answers_go_to_the_wrong_batches(patch: Patch) -> None:
    """The answers of a file are dealt out one place too late."""
    patch.wrap(
        Acknowledger,
        "committed",
        lambda right: lambda self, file, answers: right(self, file, [*answers[-1:], *answers[:-1]]),
    )


@bug("W11", Kind.WRONG_ANSWER)
def merged_batches_are_all_told_the_first_offset(patch: Patch) -> None:
    """Every request with a merged batch is answered with the offset of the whole."""

    def committed(self: Acknowledger, file: Any, answers: Any) -> None:
        bases = iter(answers)
        whole = next(bases) if answers else None
        told = []
        for number, entry in enumerate(file.stage.entries):
            if number and not entry.records_before:
                whole = next(bases)
            told.append((entry, whole))
        original(self, file, answers)
        for entry, answer in told:
            if entry.reply.error_code == 0 and answer is not None:
                entry.reply.base_offset = answer.base_offset

    original = patch.replace(Acknowledger, "committed", committed)


@bug("W11", Kind.DUPLICATE, Kind.CORRUPT)
def idempotent_batches_are_merged(patch: Patch) -> None:
    """Batches that carry a producer id are merged like any other, and lose it."""
    patch.replace(upload, "_is_small", lambda header, max_bytes: header.record_count <= upload.RECORDS_MAX)


@bug("W3", Kind.UNSTORED, Kind.UNACCOUNTED, Kind.LOST, Kind.STUCK, Kind.CORRUPT)
def file_id_is_used_twice(patch: Patch) -> None:
    """Two files in a row get the same id."""
    last: list[Any] = []

    def new_file_id(born_ms: int, rng: Any) -> Any:
        last.append(last.pop() if last and rng.random() < 0.5 else original(born_ms, rng))
        return last[-1]

    original = patch.replace(upload, "new_file_id", new_file_id)


@bug("X8", Kind.FLUSHED_EARLY)
def early_flushes_use_no_budget(patch: Patch) -> None:
    """A file that is closed early takes no token."""
    patch.replace(FlushPolicy, "closed", lambda self, reason, size_bytes, now: None)


@bug("X8", Kind.FLUSHED_EARLY)
def early_flushes_have_no_highest_rate(patch: Patch) -> None:
    """What was saved is used as fast as clients ask for it."""
    patch.wrap(
        pipeline, "flush_limits", lambda right: lambda settings: dataclasses.replace(right(settings), rate_max=math.inf)
    )


@bug("X8", Kind.FLUSHED_EARLY)
def queueing_files_do_not_hold_up_an_early_flush(patch: Patch) -> None:
    """Files are closed early while others queue for their upload or commit."""
    patch.replace(flusher, "EARLY_FILES_MAX", 1_000)


@bug("X8", Kind.FLUSHED_EARLY)
def short_memory_does_not_hold_up_an_early_flush(patch: Patch) -> None:
    """Files are closed early although requests wait for memory."""
    patch.wrap(
        FlushPolicy,
        "judge",
        lambda right: lambda self, found, now: right(self, dataclasses.replace(found, congested=False), now),
    )


@bug("X8", Kind.STUCK)
def linger_is_forgotten(patch: Patch) -> None:
    """A file that may not be closed early is not closed when its linger ends."""

    def judge(self: FlushPolicy, found: Situation, now: float) -> FlushVerdict:
        verdict = original(self, found, now)
        return FlushVerdict(None, now + 1) if verdict.reason is FlushReason.LINGER else verdict

    original = patch.replace(FlushPolicy, "judge", judge)


@bug("X8", Kind.LOST, Kind.STUCK, Kind.CRASHED)
def an_early_file_is_forgotten(patch: Patch) -> None:
    """A file that the last answer of its clients closes is not uploaded."""

    def flush(self: flusher.Flusher, reason: FlushReason) -> None:
        if reason is FlushReason.CLIENTS_WAIT:
            self._buffer.close(reason, self._clock.monotonic())
        else:
            original(self, reason)

    original = patch.replace(flusher.Flusher, "flush", flush)
