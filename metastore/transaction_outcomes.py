"""How ended transactions are recorded in the bucket: their outcomes, and which batches of files they decide.

Place: compactor/outcomes.py writes outcomes to the bucket while the cluster runs; a rebuild reads them, when nothing
else is left.
Invariant: the outcome of a batch is known only if the bucket names it without contradiction:
after a promotion, a transaction may have been ended a second time, differently: then what readers saw is not known.
Layout: objects of recorded_objects.py below `metastore/transactions/`; an entry is a list of the fields of
TransactionOutcome.
Source: KIP-98 (sequences of a producer in a partition rise with its batches).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.metastore.recorded_objects import RecordedObject, list_in_force, read_entries
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/transactions/"


class BatchOwner(NamedTuple):
    """What the header of a transactional batch says of its producer."""

    producer_id: int
    epoch: int
    sequence: int


class PartitionOutcomes:
    """How transactions ended in one partition."""

    def __init__(self, outcomes: Iterable[TransactionOutcome] = ()) -> None:
        self.outcomes = sorted(set(outcomes), key=lambda one: (one.marker_offset, one))
        """By offset of the marker."""
        self._of: dict[tuple[int, int], list[TransactionOutcome]] = defaultdict(list)
        for one in self.outcomes:
            self._of[one.producer_id, one.epoch].append(one)

    def committed(self, owner: BatchOwner) -> bool | None:
        """Return whether a batch of this owner was committed; None if that is not known."""
        ends = self._of.get((owner.producer_id, owner.epoch), [])
        if any(a.end_sequence >= b.end_sequence or a.marker_offset == b.marker_offset for a, b in pairwise(ends)):
            return None  # another life ended it otherwise, or sequences began again at 0
        return next((one.commits for one in ends if owner.sequence < one.end_sequence), None)


async def list_outcomes(store: ObjectStore) -> list[RecordedObject]:
    """Return the objects that no later life took over."""
    return await list_in_force(store, PREFIX)


async def read_outcomes(store: ObjectStore, key: str) -> list[TransactionOutcome]:
    """Return what one object says. CorruptError if it is damaged."""
    return await read_entries(store, key, TransactionOutcome)
