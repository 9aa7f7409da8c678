"""The sweeper: deletes objects that no row names, at the most hostile moments.

Fault model: it works from a list that may be stale, and strikes between a put and its commit as
readily as long after. The rule that makes this safe is the one under test: it condemns an id before
it deletes the object, and leaves alone what a commit named first.
"""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

from tests.model.segment_end_model import ModelLifecycle
from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.world import World


class Sweeper:
    """Works with the metastore and the bucket directly: its own connection is not what is tested."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_list: list[uuid.UUID] = []

    def take(self, file_id: uuid.UUID) -> bool:
        """Delete the object if its id could be condemned."""
        if not self._condemn(file_id):
            return False
        self._world.note("condemned", str(file_id))
        self._world.bucket.remove(file_id)
        return True

    def sweep(self, rng: random.Random) -> None:
        """One run over a part of the bucket, as it is or as it was at the last run."""
        self._world.faults.count(Fault.SWEPT)
        listed = self._world.bucket.file_ids()
        if self._world.faults.strikes(Fault.STALE_LIST):
            listed = self._last_list
        self._last_list = listed
        share = rng.choice((0.2, 0.6, 1.0))
        for file_id in listed:
            if rng.random() < share:
                self.clean(file_id)

    def sweep_all(self) -> None:
        """The last run: everything that is not live goes."""
        for file_id in self._world.bucket.file_ids():
            self.clean(file_id)

    def clean(self, file_id: uuid.UUID) -> None:
        """Delete the object unless it has live extents."""
        model = self._world.database.model
        has_janitor = isinstance(model, ModelLifecycle)  # which deletes what has a row (segment_workers.py)
        if has_janitor or (file_id not in model.answers and file_id not in model.merged):
            self.take(file_id)
        elif not any(e.file_id == file_id for p in model.partitions.values() for e in p.extents):
            self._world.note("dead file deleted", str(file_id))
            self._world.bucket.remove(file_id)

    def _condemn(self, file_id: uuid.UUID) -> bool:
        return self._world.database.model.condemn(file_id)
