"""Deliberate bugs in the merge: what it makes of batches is no longer what they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.compactor import rewrite
from headrace.storage.records.codec import Record
from headrace.storage.segment.verified import SoundBatch
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W9", Kind.LOST, Kind.GAP, Kind.CORRUPT)
def rewritten_batch_lacks_its_last_record(patch: Patch) -> None:
    """Only its records show it: offsets, checksum and place are right."""

    def encode(records: Sequence[Record], **options: Any) -> bytes:
        return bytes(original(records[:-1] or records, **options))

    original = patch.replace(rewrite, "encode_batch", encode)


@bug("W9", Kind.WRONG_ANSWER, Kind.STALE)
def batches_of_different_append_times_are_merged(patch: Patch) -> None:
    """A broker's time is one for a whole batch: the earlier records get the latest one's."""

    def agrees(self: rewrite.MergeRecords, batch: SoundBatch) -> bool:
        return self._target(self._waiting[-1]) == self._target(batch)

    patch.replace(rewrite.MergeRecords, "_agrees", agrees)
