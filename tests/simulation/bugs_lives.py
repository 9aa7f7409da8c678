"""Deliberate bugs in the life of the metastore: each must be caught in suites.FAILING_OVER."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.produce.refused_sequences import Numbered, RefusedSequences
from headrace.metastore.life import keeper, verdict
from headrace.metastore.life.bucket import Position
from headrace.metastore.life.keeper import FlushedPosition, LeavePolicy, LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict, judge
from tests.model import metastore_model
from tests.patch import Patch
from tests.simulation import database, failovers
from tests.simulation.bug import bug
from tests.simulation.database import Database
from tests.simulation.faults import Fault
from tests.simulation.metadata import Metadata
from tests.simulation.plan import Plan
from tests.simulation.problems import Kind


def _with(kind: Fault) -> Callable[[Plan], bool]:
    return lambda plan: any(failover.kind is kind for failover in plan.failovers)


@bug("W1", Kind.LOST)
def an_old_primary_is_taken_for_the_metastore(patch: Patch) -> None:
    """A process continues acknowledging although the life of its server is over."""

    def judged(*args: Any) -> LifeVerdict:
        found = judge(*args)
        return LifeVerdict.CURRENT if found is LifeVerdict.SUPERSEDED else found

    patch.replace(keeper, "judge", judged)


@bug("W1", Kind.STUCK, Kind.LOST)
def a_server_that_was_promoted_earlier_takes_over(patch: Patch) -> None:
    """A server takes the metastore back from one that was promoted before the life of the former began."""
    patch.replace(verdict, "_is_of_an_older_timeline", lambda found, newest: False)


@bug("W7", Kind.DUPLICATE)
def producer_ids_do_not_carry_the_life(patch: Patch) -> None:
    """Ids that a lost commit handed out are handed out again."""
    patch.replace(metastore_model, "NUMBER_BITS", 0)


@bug("W5", Kind.INCONSISTENT)
def leader_epochs_do_not_rise(patch: Patch) -> None:
    """An offset is handed out again under the same leader epoch, so no consumer can notice."""
    patch.replace(database, "epoch_floor", lambda life: 0)


@bug("W1", Kind.INCONSISTENT, Kind.LOST)
def topic_numbers_do_not_carry_the_life(patch: Patch) -> None:
    """A buffered file of a lost topic is committed into the topic that got its number."""

    def begin_life(self: Metadata, life: int) -> None:
        number = self._next_number
        original(self, life)
        self._next_number = number

    original = patch.replace(Metadata, "begin_life", begin_life)


@bug("W1", Kind.INCONSISTENT, Kind.UNSEEN)
def agents_keep_what_they_knew_of_the_old_life(patch: Patch) -> None:
    """The tail index takes a page of another life for one of the life it knows, as far as its rows fit."""

    def apply(self: TailIndex, page: Any) -> Any:
        if self._incarnation is not None:
            self._incarnation = page.incarnation_id
            page.lost_shards.clear()
            self.heads = {shard: min(head, page.heads[shard]) for shard, head in self.heads.items()}
        return original(self, page)

    original = patch.replace(TailIndex, "apply", apply)


@bug("W7", Kind.DUPLICATE, Kind.INCONSISTENT)
def a_second_server_joins_a_life_of_another(patch: Patch) -> None:
    """Of two servers that reach one timeline, the later one takes the newest life for the one it is to begin."""

    async def begin(self: LifeKeeper, found: Any, *given: Any) -> bool:
        if self._newest is not None and self._newest.life > found.life:
            await self._api.prepare_life(self._newest.incarnation_id)
            return await self._api.begin_life(self._newest.life, self._newest.incarnation_id)
        return bool(await original(self, found, *given))

    def prepare(self: Database, incarnation_id: uuid.UUID, spent: uuid.UUID | None) -> uuid.UUID:
        self.prepared = (incarnation_id, self.timeline)
        return incarnation_id

    original = patch.replace(LifeKeeper, "_begin", begin)
    patch.replace(Database, "prepare_life", prepare)


def _restores_a_promoted_one(plan: Plan) -> bool:
    """1 plan in 18. The next bug shows in about 1 of 60 of these."""
    kinds = [failover.kind for failover in plan.failovers]
    return len(kinds) > 1 and kinds[0] is not Fault.RESTORED and kinds[-1] is Fault.RESTORED


@bug("W1", Kind.INCONSISTENT, Kind.DUPLICATE, Kind.LOST, may_show=_restores_a_promoted_one)
def a_copy_keeps_the_id_that_its_original_prepared(patch: Patch) -> None:
    """A copy of a server that had prepared a life and not begun it finishes that life, which the original has used."""
    patch.wrap(
        Database, "prepare_life", lambda right: lambda self, incarnation_id, spent: right(self, incarnation_id, None)
    )


@bug("W3", Kind.LOST, may_show=_with(Fault.PROMOTED))
def a_synchronous_standby_lags(patch: Patch) -> None:
    """A commit is acknowledged before the standby has it, and the standby is promoted."""

    def copy(self: failovers.Failovers, failover: Any) -> None:
        if failover.kind is not Fault.PROMOTED:
            original(self, failover)
            return
        origin = self._world.database
        self._later(0.3, failover.kind, origin, origin.timeline, [origin.fork()])

    original = patch.replace(failovers.Failovers, "_copy", copy)


@bug("W1", Kind.STUCK, may_show=lambda plan: bool(plan.crashes))
def a_crash_is_taken_for_a_restore(patch: Patch) -> None:
    """WAL is noted that the server has not flushed: after an ordinary crash it has less, and no agent writes."""

    def take(self: FlushedPosition, found: Any) -> None:
        self.newest = Position.of(found)

    patch.replace(FlushedPosition, "take", take)


@bug("W1", Kind.LOST, Kind.INCONSISTENT, Kind.DUPLICATE)
def a_copy_is_taken_for_what_it_was(patch: Patch) -> None:
    """Postgres does not compare the life that a writing call names: agents continue with a server that is over, or
    before its life has begun. Then it gives out offsets of one leader epoch, and producer ids, for the second time.
    """
    patch.replace(Database, "assert_life", lambda self, named_life: None)


@bug("W1", Kind.STUCK, may_show=_with(Fault.SPLIT))
def connections_to_an_old_primary_are_kept(patch: Patch) -> None:
    """The address of Postgres has moved, and a process that is connected to the old primary stays there."""
    patch.replace(LeavePolicy, "leaves", lambda self, verdict, server, now: False)


@bug("W7", Kind.HIDDEN)
def a_gap_is_waited_for_without_end(patch: Patch) -> None:
    """Each batch that is out of order begins the wait again."""

    def explain(self: RefusedSequences, batch: Numbered, now: float, *, missing: int, is_settled: bool) -> bool:
        found = self._producers.get((batch.producer_id, batch.place))
        if found is not None:
            found.gap = None
        return bool(original(self, batch, now, missing=missing, is_settled=False))

    original = patch.replace(RefusedSequences, "explain_by_another_agent", explain)


@bug("W7", Kind.STUCK)
def notes_of_an_earlier_life_last(patch: Patch) -> None:
    """A producer is asked to wait for a batch that another agent had stored, and that the failover lost."""
    patch.replace(RefusedSequences, "life_begins", lambda self, now: None)
    _starts_without_a_life(patch)


def _starts_without_a_life(patch: Patch) -> None:
    """A process takes it that no life began shortly before it started."""

    def init(self: RefusedSequences, names_of: Any, started_at: float, *args: Any) -> None:
        original(self, names_of, -math.inf, *args)

    original = patch.replace(RefusedSequences, "__init__", init)


@bug("W7", Kind.STUCK)
def notes_of_late_refusals_last(patch: Patch) -> None:
    """The same for a batch that was under way when the life began, and is refused in it."""

    def life_begins(self: RefusedSequences, now: float) -> None:
        original(self, now)
        self._life_began_at = -math.inf

    original = patch.replace(RefusedSequences, "life_begins", life_begins)
    _starts_without_a_life(patch)
