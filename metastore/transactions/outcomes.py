"""What the bucket says of transactions that have ended: their outcomes, and which batches of files they decide.

Place: written by compactor/outcomes.py while the cluster runs; read by a rebuild, when nothing else is left.
Invariant: an object is written once. The outcome of a batch is known only if the bucket names it without contradiction:
after a promotion, a transaction may have been ended a second time, differently: then what readers saw is not known.
Layout: `metastore/transactions/` + the life + `/` + the number of outcomes + a random name, JSON: a list of the fields
of TransactionOutcome.
Source: KIP-98 (sequences of a producer in a partition rise with its batches).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.storage.errors import CorruptError
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/transactions/"


class OutcomeObject(NamedTuple):
    """An object, by what its key says."""

    key: str
    life: int
    outcomes: int
    """Their number."""


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
        """Whether a batch of this owner was committed; None if that is not known."""
        ends = self._of.get((owner.producer_id, owner.epoch), [])
        if any(a.end_sequence >= b.end_sequence or a.marker_offset == b.marker_offset for a, b in pairwise(ends)):
            return None  # another life ended it otherwise, or sequences began again at 0
        return next((one.commits for one in ends if owner.sequence < one.end_sequence), None)


async def write_outcomes(
    store: ObjectStore, life: int, name: uuid.UUID, outcomes: Sequence[TransactionOutcome]
) -> OutcomeObject:
    """One object."""
    key = f"{PREFIX}{life:010}/{len(outcomes):08}-{name}.json"
    await store.put(key, msgspec.json.encode([tuple(one) for one in outcomes]))
    return OutcomeObject(key, life, len(outcomes))


async def list_outcomes(store: ObjectStore) -> list[OutcomeObject]:
    """All objects."""
    found = []
    async for info in store.list_objects(PREFIX):
        life, _, name = info.key.removeprefix(PREFIX).partition("/")
        found.append(OutcomeObject(info.key, int(life), int(name[:8])))
    return found


async def read_outcomes(store: ObjectStore, key: str) -> list[TransactionOutcome]:
    """What one object says. CorruptError if it is damaged."""
    try:
        return msgspec.json.decode(await store.get(key), type=list[TransactionOutcome])
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the bucket's record of transactions is damaged: key={key} {error}") from error
