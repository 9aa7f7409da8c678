"""Deliberate bugs in the merge: what it makes of batches is no longer what they were."""

from __future__ import annotations

from headrace.compactor import rewrite
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W9", Kind.LOST, Kind.GAP, Kind.CORRUPT)
def rewritten_batch_lacks_its_last_record(patch: Patch) -> None:
    """Only its records show it: offsets, checksum and place are right."""
    patch.wrap(
        rewrite, "encode_batch", lambda right: lambda records, **options: right(records[:-1] or records, **options)
    )


@bug("W9", Kind.WRONG_ANSWER, Kind.STALE)
def batches_of_different_append_times_are_merged(patch: Patch) -> None:
    """A broker's time is one for a whole batch: the earlier records get the latest one's."""
    patch.replace(
        rewrite.MergeRecords, "_agrees", lambda self, batch: self._target(self._waiting[-1]) == self._target(batch)
    )
