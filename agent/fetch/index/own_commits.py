"""What this agent committed lately, for the list of what a failover may have lost.

Place: filled by feed.py with each commit's answer; read when the metastore goes back or begins a new life.
Between a commit and the poll that brings its row, only this agent knows the row for certain, because other agents need
not follow its commit shard. After a failover that lost it, a poll does not bring it, and looks complete.
Invariant: a commit is kept until `KEEP_SECONDS` after the first complete poll that began after its answer, unless there
are more than `BATCHES_MAX` later batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from headrace.agent.fetch.index.appended import appended_extents
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.read import Extent

KEEP_SECONDS = 30.0
"""Longer than a process takes to learn that its server is no longer the metastore."""
BATCHES_MAX = 3_000
"""About 1 MB, and more than an agent commits between two polls."""


class OwnCommits:
    """One agent's, oldest first."""

    def __init__(self, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._polled: deque[tuple[float, FileCommit, FileAnswer]] = deque()
        """Those before a complete poll, with its time."""
        self._new: deque[tuple[FileCommit, FileAnswer]] = deque()
        self._before_poll = 0
        """How many of `_new` the poll that is under way was sent after."""
        self._batches = 0

    @property
    def held_batches(self) -> int:
        """Number of batches that are kept."""
        return self._batches

    def note(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        """These files were committed."""
        for commit, answer in zip(commits, answers, strict=True):
            if answer.batches:
                self._new.append((commit, answer))
                self._batches += len(answer.batches)
        while self._batches > self._batches_max:
            self._forget_oldest()

    def begin_poll(self) -> None:
        """A poll is about to be sent."""
        self._before_poll = len(self._new)

    def end_poll(self, now: float, *, is_complete: bool) -> None:
        """The poll was answered, or failed."""
        for _ in range(self._before_poll if is_complete else 0):
            self._polled.append((now, *self._new.popleft()))
        self._before_poll = 0
        while self._polled and self._polled[0][0] < now - KEEP_SECONDS:
            self._forget_oldest()

    def forget(self) -> None:
        """All of them are of another life of the metastore."""
        self._polled.clear()
        self._new.clear()
        self._before_poll = self._batches = 0

    def extents(self, without: Iterable[Extent]) -> list[Extent]:
        """Return what they appended, but for these extents. Those of which the answers do not tell all are left out."""
        known = {(extent.source, extent.partition_key, extent.base_offset) for extent in without}
        kept = [*((commit, answer) for _, commit, answer in self._polled), *self._new]
        return [
            extent
            for commit, answer in kept
            for extent in appended_extents([commit], [answer]) or ()
            if (extent.source, extent.partition_key, extent.base_offset) not in known
        ]

    def _forget_oldest(self) -> None:
        if self._polled:
            answer = self._polled.popleft()[2]
        else:
            answer = self._new.popleft()[1]
            self._before_poll = max(0, self._before_poll - 1)
        self._batches -= len(answer.batches)
