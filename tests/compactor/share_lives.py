"""Random histories of a share group over restores of the metastore, and what `headrace audit --lost` must say of them.

Fault model: Postgres and the log go back to any earlier backup, and a new life begins. Before a worker of the old life
has noticed, it may record what it reads from the restored server. An agent is killed, or it stops and records what its
members were answered.
Reference: per record, whether a member heard that it is done, and in which life; and whether the new life knows it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from headrace.agent.groups.share.answered import AnsweredShares
from headrace.compactor.share_record import LostShares, ShareRecorder, find_lost_shares
from headrace.metastore.api.groups import ShareState, StoredSharePartition
from headrace.metastore.api.read import EpochEnd, EpochQuery
from headrace.metastore.life.numbers import epoch_floor
from headrace.metastore.share_states import KeptRange, encode_kept
from headrace.storage.objects.memory import MemoryStore
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.manual_clock import ManualClock
from tests.nouns import nouns

GROUP, KEY = "g", 5 << 24
STEPS = 60


class Lives:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng, self.clock = random.Random(seed), ManualClock()
        self.store = MemoryStore(self.clock)
        self.api: Any = FakeGroupApi(lambda node_id, epoch: node_id == 1)
        self.life = self.job_epoch = self.revision = self.epoch = 0
        self.log: list[int] = []
        """The life in which each record was appended: its offset is its index."""
        self.done: set[int] = set()
        self.begun = 0
        self.heard: dict[int, int] = {}
        """Record -> the number of the write after which a member heard that it is done, of this life's records and of
        those that it kept."""
        self.ever: set[tuple[int, int]] = set()
        """(record, the life in which it was appended) of all that members ever heard."""
        self.writes = 0
        self.recorded = self.recorded_by_agent = 0
        """Writes of which the bucket has the state."""
        self.loss: tuple[dict[int, int], int, list[int], set[int]] | None = None
        """The last one: what was heard before, the writes that were recorded, the log and the records that are done in
        what the new life found. If the bucket has nothing of the life before, an earlier loss is listed."""
        self.backups: list[Any] = []
        self.recorder = self._new_recorder()
        self.answered = self._new_agent()
        self.states: dict[int, ShareState] = {}

    async def run(self) -> list[str]:
        """Return what is wrong with the lists of the history."""
        problems: list[str] = []
        await self._append()
        await self._back_up()
        await self._claim()
        for _ in range(STEPS):
            await self.rng.choice(
                (
                    self._append,
                    self._acknowledge,
                    self._acknowledge,
                    self._record,
                    self._back_up,
                    self._stop,
                    self._kill,
                )
            )()
            if self.rng.random() < 0.08 and self.backups:
                await self._restore()
            if self.rng.random() < 0.2:
                problems += await self._compare()
        return problems

    # -- steps

    async def _append(self) -> None:
        self.log += [self.life] * self.rng.randint(1, 6)

    async def _acknowledge(self) -> None:
        """Some records become done, the state is stored, and members hear it."""
        open_ = [offset for offset in range(self.begun, len(self.log)) if offset not in self.done]
        chosen = self.rng.sample(open_, min(len(open_), self.rng.randint(0, 4)))
        if not chosen:
            return
        self.done |= set(chosen)
        await self._store()
        self.writes += 1
        self.heard |= dict.fromkeys(chosen, self.writes)
        self.ever |= {(offset, self.log[offset]) for offset in chosen}

    async def _record(self) -> None:
        self.job_epoch += 1
        await self.recorder.record(self.life, self.job_epoch)
        self.recorded = self.writes

    async def _back_up(self) -> None:
        kept = copy.deepcopy((self.api, self.job_epoch, self.epoch, self.revision))
        self.backups.append((kept, list(self.log), set(self.done)))

    async def _stop(self) -> None:
        """The agent stops and records; another one continues."""
        self.answered.record(self.states.values())
        await self.answered.close()
        self.recorded_by_agent = self.writes
        self.answered, self.states = self._new_agent(), {}
        await self._claim()

    async def _kill(self) -> None:
        self.answered, self.states = self._new_agent(), {}
        await self._claim()

    async def _restore(self) -> None:
        """Postgres goes back; the old life's agents may record what they know, and its worker what it finds."""
        if self.rng.random() < 0.5:
            self.answered.record(self.states.values())
            await self.answered.close()
            if self.states:
                self.recorded_by_agent = self.writes
        (api, job_epoch, _, _), log, done = self.rng.choice(self.backups)
        self.api, self.backups = copy.deepcopy(api), []
        self.recorder = self._new_recorder() if self.rng.random() < 0.5 else self._with_api()
        if self.rng.random() < 0.5:  # it has not noticed yet
            await self.recorder.record(self.life, job_epoch + 1)
        self.job_epoch = job_epoch + 1
        known = max(self.recorded, self.recorded_by_agent)
        self.loss = dict(self.heard), known, list(log), set(done)
        self.heard = {offset: write for offset, write in self.heard.items() if offset in done}
        self.log, self.done = list(log), set(done)
        self.life += 1
        self.api.begin_life(self.life)
        self.recorder, self.answered, self.states = self._new_recorder(), self._new_agent(), {}
        self.recorded = self.recorded_by_agent = 0
        await self._claim()

    # -- insides

    def _new_recorder(self) -> ShareRecorder:
        return ShareRecorder(self.api, self.store, self.clock)

    def _with_api(self) -> ShareRecorder:
        self.recorder._api = self.api
        return self.recorder

    def _new_agent(self) -> AnsweredShares:
        return AnsweredShares(self.store, lambda: 1, self.clock)

    async def _claim(self) -> None:
        claim = await self.api.claim_group(GROUP, 1, 1)
        assert claim is not None
        self.epoch, self.revision = claim.coordinator_epoch, 0
        rows = await self.api.load_share_partitions(GROUP)
        if rows:
            (row,) = rows
            self.begun = row.begun_offset
            self.states[KEY] = ShareState(GROUP, KEY, self.epoch, 0, row.begun_offset, row.start_offset, row.kept)
        else:
            self.begun, self.done = self.rng.randint(0, len(self.log)), set()
            self.done = set(range(self.begun))
            await self._store()

    async def _store(self) -> None:
        start = next((offset for offset in range(len(self.log) + 1) if offset not in self.done), len(self.log))
        kept = [KeptRange(offset, offset, True, 0) for offset in sorted(self.done) if offset >= start]
        row = StoredSharePartition(KEY, start, encode_kept(kept))
        self.revision += 1
        await self.api.store_share_partitions(GROUP, self.epoch, self.revision, [row])
        begun = min(self.begun, self.states[KEY].begun_offset) if KEY in self.states else self.begun
        self.states[KEY] = ShareState(GROUP, KEY, self.epoch, self.revision, begun, start, row.kept)

    async def _compare(self) -> list[str]:
        if self.loss is None:
            return []
        found: LostShares = await find_lost_shares(nouns(_Metastore(self)), self.store, self.life)
        listed = {offset for each in found.lost for first, last in each.ranges for offset in range(first, last + 1)}
        heard, known, log, done = self.loss
        lost = {offset for offset, life in self.ever if offset < len(log) and log[offset] == life} - done
        must = {offset for offset, write in heard.items() if write <= known and offset in lost}
        problems = []
        if missing := must - listed:
            problems.append(f"not listed: {sorted(missing)} life={self.life}")
        if wrong := listed - lost:
            problems.append(f"listed, but not lost: {sorted(wrong)} life={self.life}")
        return problems


class _Metastore:
    """The group's rows, and leader epochs that begin with each life."""

    def __init__(self, lives: Lives) -> None:
        self._lives, self.share_states = lives, lives.api.share_states

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        log = self._lives.log
        return [
            EpochEnd(True, query.leader_epoch, sum(epoch_floor(life) <= query.leader_epoch for life in log))
            for query in queries
        ]
