"""Which stored files may be committed now: the order rule, and nothing else.

Place: asked by commit, fed by the pipeline when a buffer closes. Pure.
Invariant: files that share a stream (same producer and partition, or same connection and partition
without a producer) are committed in the order in which they were flushed: a file waits until its
predecessors are settled, or follows them in the same call. All others overtake a slow upload.
If the process dies here nothing is lost: no state that outlives the files.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.agent.produce.staged_file import FileState, StagedFile, Stream

SHARES_CALL_S = 60.0
"""Much less than the age at which a sweeper condemns files, or the metastore refuses them."""


class FlushOrder:
    """The closed files that are not settled, in the order of their flushes."""

    def __init__(self) -> None:
        self._files: dict[StagedFile, None] = {}
        self._last: dict[Stream, StagedFile] = {}
        """The newest unsettled file of each stream."""
        self._flushes = 0

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[StagedFile]:
        """Oldest first; files may be settled meanwhile."""
        return iter(list(self._files))

    def append(self, file: StagedFile) -> None:
        """A buffer was closed."""
        self._files[file] = None
        self._flushes += 1
        file.flush_number = self._flushes
        for stream in file.streams:
            before = self._last.get(stream)
            if before is not None:
                file.predecessors.add(before)
            self._last[stream] = file

    def settle(self, file: StagedFile) -> None:
        """Every batch of the file has its answer. Whoever waited for it now waits for what it waited for itself."""
        file.state = FileState.SETTLED
        del self._files[file]
        for stream in file.streams:
            if self._last.get(stream) is file:
                self._forget_last(stream, file)
        for later in self._files:
            if file in later.predecessors:
                later.predecessors.remove(file)
                later.predecessors |= file.predecessors
        file.predecessors.clear()

    def _forget_last(self, stream: Stream, file: StagedFile) -> None:
        """A file that fails may be settled before its predecessors: then the newest of those is the last."""
        before = [earlier for earlier in file.predecessors if stream in earlier.streams]
        if before:
            self._last[stream] = max(before, key=lambda earlier: earlier.flush_number)
        else:
            del self._last[stream]

    def behind(self, file: StagedFile) -> list[StagedFile]:
        """The files that were flushed after this one."""
        files = list(self._files)
        return files[files.index(file) + 1 :]

    def next_group(self, files_max: int, batches_max: int, now: float) -> list[StagedFile]:
        """Stored files that may go in one call, in commit order. At least one if any may go."""
        group: dict[StagedFile, None] = {}
        batches = 0
        for file in self._files:
            if file.state is not FileState.STORED:
                continue
            if not all(before in group and _may_share_call(before, file, now) for before in file.predecessors):
                continue
            batches += len(file.staged)
            if group and (batches > batches_max or len(group) >= files_max):
                break
            group[file] = None
        return list(group)


def _may_share_call(before: StagedFile, file: StagedFile, now: float) -> bool:
    """Whether `file` may follow its predecessor in one call: only if the call takes both or neither.

    A predecessor in doubt is repeated without those that it was not sent with. An old one may be
    condemned, or refused for its age. One that was accepted under other leader epochs may be
    refused for them while `file` is taken.
    """
    return (
        before.is_in_doubt == file.is_in_doubt
        and now - before.trace.put_started_at < SHARES_CALL_S
        and before.first_image == file.last_image
    )
