"""Deliberate bugs of inline files: each must be caught in suites.INLINE.

Those of the metastore are put into the reference model: what tests/compactor/test_inline_files.py does to the SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.agent.fetch import deliver
from headrace.agent.produce import flusher
from headrace.agent.produce.commit import Committer
from headrace.agent.produce.files import CommittingFile, FlushedFile, StoredFile
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.inline import InlineRange
from headrace.storage.file_id import new_file_id, object_key
from tests.model.inline_model import ModelInline
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.metastore_line import MetastoreLine
from tests.simulation.mover import MoverApi
from tests.simulation.problems import Kind


@bug("X13", Kind.UNACCOUNTED, Kind.UNSEEN, Kind.LOST)
def rows_go_before_the_swap(patch: Patch) -> None:
    """The mover takes the bytes that it reads away: its swap may never come."""

    async def read(self: MoverApi, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        bodies: list[bytes | None] = await original(self, ranges)
        for each in ranges:
            self.model.inline_files.pop(each.file_id, None)
        return bodies

    original = patch.replace(MoverApi, "read_inline", read)


@bug("X13", Kind.UNACCOUNTED, Kind.UNSEEN, Kind.LOST)
def a_slot_is_emptied_with_an_unmoved_file(patch: Patch) -> None:
    """It is not looked at for live files."""
    patch.replace(ModelInline, "_first_live", lambda self, slot: None)


@bug("X13", Kind.UNACCOUNTED)
def a_late_file_stays_in_an_empty_slot(patch: Patch) -> None:
    """A commit that comes after its slot was emptied stores its bytes there, and the slot is not drained again."""
    patch.replace(ModelInline, "_drain_late_files", lambda self: None)


@bug("X13", Kind.UNSEEN)
def a_reader_keeps_the_old_place(patch: Patch) -> None:
    """A row that is gone counts as a failed read: the reader does not ask where its records are now."""
    patch.replace(deliver, "_may_be_replaced", lambda outcome: False)


@bug("X13", Kind.UNACCOUNTED)
def a_repeated_commit_stores_its_bytes_again(patch: Patch) -> None:
    """It gets its first answer, and its bytes get another row after their slot was emptied."""

    def store(self: ModelInline, files: Sequence[FileCommit]) -> None:
        for file in files:
            if file.body is not None:
                self.inline_files.setdefault(file.file_id, file.body)

    patch.replace(ModelInline, "store_inline", store)


@bug("X13", Kind.LIFECYCLE)
def a_mover_swaps_without_its_lease(patch: Patch) -> None:
    """The job has another holder by now, or ended."""
    patch.replace(MoverApi, "assert_lease", lambda self, token: None)


@bug("X13", Kind.UNSTORED)
def bytes_follow_their_commit(patch: Patch) -> None:
    """They are stored by another call, once the commit is answered: never, if the answer is lost."""

    async def commit(self: MetastoreLine, node_id: int, epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        answers: list[FileAnswer] = await original(self, node_id, epoch, files)
        await self._write(lambda server: store(server.model, files))
        return answers

    store = patch.replace(ModelInline, "store_inline", lambda self, files: None)
    original = patch.replace(MetastoreLine, "commit_files", commit)


@bug("X13", Kind.UNSTORED)
def bytes_come_before_their_commit(patch: Patch) -> None:
    """They are stored by another call, and their slot may be emptied before the commit makes them live."""

    async def commit(self: MetastoreLine, node_id: int, epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        await self._write(lambda server: store(server.model, files))
        answers: list[FileAnswer] = await original(self, node_id, epoch, files)
        return answers

    store = patch.replace(ModelInline, "store_inline", lambda self, files: None)
    original = patch.replace(MetastoreLine, "commit_files", commit)


@bug("W7", Kind.DUPLICATE)
def a_file_in_doubt_goes_into_the_bucket(patch: Patch) -> None:
    """After a commit with a lost answer an inline file gets another id and place, and is committed again."""

    def doubt(self: Committer, group: list[FlushedFile]) -> None:
        original(self, group)
        world = self._metastore._world  # type: ignore[attr-defined]
        if not all(file.inline_bytes for file in group):
            return
        self._doubtful.remove(group)
        for file in group:
            assert isinstance(file.stage, CommittingFile)
            size, body = file.stage.commit.size, file.stage.commit.body
            file_id = new_file_id(world.database.clock.wall_ms(), self._rng)
            world.bucket.put(object_key(file_id), body)
            file.stage = StoredFile(file_id, size, list(file.stage.entries))

    original = patch.replace(Committer, "_doubt", doubt)


@bug("W4", Kind.DISORDER, Kind.SPURIOUS)
def a_stream_is_split_over_both_open_files(patch: Patch) -> None:
    """The file that may be inline closes first, also if the other one has earlier batches of the stream."""
    patch.replace(flusher, "_shares_stream", lambda file, arrivals: False)
