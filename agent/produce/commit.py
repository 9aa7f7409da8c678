"""Group commit: stored files become ordered, readable batches in one metastore call at a time.

Place: between upload and acknowledge; the linearisation point of the write path.
Invariant: a commit with an unknown outcome is repeated, unchanged, under the same file ids until a
definite answer arrives; files that depend on it wait, all others continue. A call that certainly
did nothing puts its files back. A file that the metastore refuses is found by halving the groups,
and fails alone.
One call is in flight at a time. The order of a stream is the flush queue's rule alone: it gives out a file when each of
its predecessors is settled or goes into the same call. The groups in doubt that are kept here are no second rule of
order: their files are in no other group, and what follows them waits in the queue. They are kept for two things that
the queue cannot do: a group is repeated as it was sent, so that its files still have one fate; and groups take turns,
so that one that fails each time holds up neither new files nor other groups in doubt.
If the process ends with a call in flight, its outcome is unknown: no batch was acknowledged, and clients
send them again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

from headrace.agent.cluster.view import ClusterView
from headrace.agent.produce.acknowledge import Acknowledger
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.files import CommittingFile, DoubtfulFile, FlushedFile, FlushQueue, StoredFile
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.requests import not_stored
from headrace.metastore.api.commit import CommitApi, FileAnswer, FileCommit, FileStatus
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, OutcomeUnknownError, RetryableError

log = logging.getLogger(__name__)

GROUP_FILES_MAX = 64
GROUP_BATCHES_MAX = 10_000
"""A group's batches may exceed it by one file's. Keeps a call well below the statement timeout."""
GROUP_INLINE_BYTES_MAX = 1 << 20
"""The same of the bytes of inline files. A call of this size takes Postgres a few milliseconds."""
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 2.0
"""Longest pause in seconds between calls while they fail; doubles from one to the other."""


class Committer:
    """Runs one call at a time. `on_fenced` asks for a new registration, `on_committed` tells the readers.

    `committing` is entered while a call is under way: readers then follow what it writes to.
    """

    def __init__(
        self,
        metastore: CommitApi,
        view: ClusterView,
        queue: FlushQueue,
        acknowledger: Acknowledger,
        clock: Clock,
        rng: random.Random,
        metrics: ProduceMetrics,
        callbacks: Callbacks,
        *,
        on_answered: Callable[[float, float, bool], None],
    ) -> None:
        """`on_answered`: gets the seconds that a call took, the time of its answer, and whether files of it were
        inline."""
        self._metastore = metastore
        self._view = view
        self._queue = queue
        self._acknowledger = acknowledger
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._callbacks = callbacks
        self._on_answered = on_answered
        self._wake = asyncio.Event()
        self._doubtful: deque[list[FlushedFile]] = deque()
        self._doubt_is_next = False
        self._files_max = GROUP_FILES_MAX
        self._failures = 0

    def wake(self) -> None:
        """A file was stored or settled: look again."""
        self._wake.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            self._wake.clear()
            group = self._next_group()
            if not group:
                await self._wake.wait()
                continue
            await self._commit(group)
            if self._failures:
                await self._clock.sleep(self._pause())

    def _next_group(self) -> list[FlushedFile]:
        """One in doubt and a new one by turns, if there are both; those in doubt in turn. Empty if there is none."""
        if self._doubt_is_next and self._doubtful:
            self._doubt_is_next = False
            return self._doubtful.popleft()
        self._doubt_is_next = True
        for file in list(self._queue.files):
            if isinstance(file.stage, StoredFile):
                self._acknowledger.drop_if_unwanted(file)
        group = self._queue.next_group(
            self._files_max, GROUP_BATCHES_MAX, GROUP_INLINE_BYTES_MAX, self._clock.monotonic()
        )
        if not group and self._doubtful:
            return self._doubtful.popleft()
        return group

    def _pause(self) -> float:
        """Grows with each failure in a row; uneven, so that agents do not come back in step."""
        pause = min(PAUSE_MIN_S * 2.0 ** min(self._failures - 1, 10), PAUSE_MAX_S)
        return pause * (0.5 + self._rng.random() / 2)

    async def _commit(self, group: list[FlushedFile]) -> None:
        """One call and what follows from it."""
        try:
            answers = await self._call(group)
        except InvalidError as error:
            self._log_failure("refused", group, error)
            self._halve(group, error)
        except RetryableError as error:
            self._log_failure("nothing happened", group, error)
            self._try_later(group)
        except OutcomeUnknownError as error:
            self._log_failure("outcome unknown", group, error)
            self._doubt(group)
        except Exception as error:  # a bug, or a client library's; what reached the metastore is unknown
            log.exception("commit failed in an unforeseen way: files=%d", len(group))
            self._log_failure("outcome unknown", group, error)
            self._doubt(group)
        else:
            self._settle(group, answers)

    async def _call(self, files: list[FlushedFile]) -> list[FileAnswer]:
        started_at = self._clock.monotonic()
        commits = [self._send(file, started_at) for file in files]
        with self._callbacks.committing(commits):
            answers = await self._metastore.commit_files(self._view.node_id, self._view.broker_epoch, commits)
        _check_shape(commits, answers)
        answered_at = self._clock.monotonic()
        for file in files:
            file.trace.committed_at = answered_at
        self._metrics.commit_seconds.observe(answered_at - started_at)
        has_inline = any(commit.body is not None for commit in commits)
        self._on_answered(answered_at - started_at, answered_at, has_inline)
        self._metrics.commit_files.observe(len(files))
        return answers

    def _send(self, file: FlushedFile, now: float) -> FileCommit:
        """Return what is sent for the file. While it is in doubt, always the same."""
        if isinstance(file.stage, StoredFile):
            file.trace.commit_started_at = now
        if not isinstance(file.stage, CommittingFile):
            assert isinstance(file.stage, StoredFile | DoubtfulFile), "only stored files are committed"
            file.stage = file.stage.send()
        file.trace.commit_calls += 1
        return file.stage.commit

    def _settle(self, group: list[FlushedFile], answers: Sequence[FileAnswer]) -> None:
        fenced: list[FlushedFile] = []
        commits = [_committing(file).commit for file in group]
        for file, answer in zip(group, answers, strict=True):
            if answer.status == FileStatus.COMMITTED:
                self._acknowledger.committed(file, answer.batches)
            elif answer.status == FileStatus.AGENT_FENCED:
                fenced.append(file)
            elif answer.status == FileStatus.TOO_OLD and file.in_doubt:
                self._acknowledger.left_unknown(file)
            else:
                self._acknowledger.failed(file, not_stored(FileStatus(answer.status).name.lower()))
        if fenced:
            log.warning("commit refused, agent fenced: files=%d epoch=%d", len(fenced), self._view.broker_epoch)
            self._try_later(fenced)
            self._callbacks.on_fenced()
        if len(fenced) < len(group):
            self._files_max = min(self._files_max * 2, GROUP_FILES_MAX)
            self._failures = 0
            self._callbacks.on_committed(commits, answers)

    def _halve(self, group: list[FlushedFile], error: InvalidError) -> None:
        """The call itself is wrong: look for the one file that makes it so. The metastore is well, so do not pause."""
        self._failures = 0
        if len(group) > 1:
            self._files_max = len(group) // 2
            self._put_back(group)
        elif group[0].in_doubt:
            self._acknowledger.left_unknown(group[0])
        else:
            self._acknowledger.failed(group[0], not_stored(f"refused by the metastore: {error}"))

    def _try_later(self, group: list[FlushedFile]) -> None:
        """This call did nothing; an earlier one may have."""
        self._back_off()
        if any(file.in_doubt for file in group):
            self._doubtful.append(group)
        else:
            self._put_back(group)

    def _doubt(self, group: list[FlushedFile]) -> None:
        """This call may have happened: it will be repeated as it is."""
        self._back_off()
        for file in group:
            file.stage = _committing(file).doubted()
        self._doubtful.append(group)

    def _put_back(self, group: list[FlushedFile]) -> None:
        """Put files back, to be grouped again. A file that is not in doubt may lose batches meanwhile, if their
        predecessors fail.
        """
        for file in group:
            file.stage = _committing(file).put_back()

    def _back_off(self) -> None:
        self._files_max = max(self._files_max // 2, 1)
        self._failures += 1

    def _log_failure(self, what: str, group: list[FlushedFile], error: Exception) -> None:
        log.warning("commit failed, %s: files=%d error=%s", what, len(group), error)
        self._metrics.commit_failures.labels(type(error).__name__).inc()


def _committing(file: FlushedFile) -> CommittingFile:
    assert isinstance(file.stage, CommittingFile), "the file was part of the call"
    return file.stage


def _check_shape(commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
    """An answer that does not fit the question tells nothing."""
    fits = len(answers) == len(commits)
    for commit, answer in zip(commits, answers, strict=False):
        count = len(commit.batches) if answer.status is FileStatus.COMMITTED else 0
        fits = fits and answer.file_id == commit.file_id and len(answer.batches) == count
    if not fits:
        raise OutcomeUnknownError(f"commit answer does not fit: files={len(commits)} answers={len(answers)}")
