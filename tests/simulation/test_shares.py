"""Share groups on troubled clusters: no schedule shows a problem, and each planted bug is found (X12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from headrace.agent.fetch.share.deliver import ShareDelivery
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.groups.claims import GroupClaims
from headrace.agent.groups.share import in_flight, share_partition
from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.groups.share.in_flight import AcquireLimits, InFlight, RangeState
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.share_partition import Acquired, SharePartition
from headrace.agent.peers.share_turns import ShareTurn
from headrace.metastore.api.read import ReadableEnds
from headrace.metastore.share_states import KeptRange, encode_kept
from headrace.protocol.request import ClientConnection
from headrace.storage.errors import FencedError, HeadraceError
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.manual_clock import ManualClock
from tests.patch import Patch, Plant, wrapped
from tests.planted import PlantedBugs, Trial
from tests.simulation.shares.agents import _Reader
from tests.simulation.shares.cluster import Logs, View
from tests.simulation.shares.world import simulate

SEEDS, MANY_SEEDS, TRANSACTION_SEEDS = 28, 600, 6


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each schedule warns of hundreds of failed calls."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.requirement("X12")
def test_no_schedule_shows_a_problem() -> None:
    found = {seed: result.problems for seed in range(SEEDS) if (result := simulate(seed)).problems}
    assert not found


@pytest.mark.slow
def test_no_schedule_of_many_shows_a_problem() -> None:
    found = {seed: result.problems for seed in range(SEEDS, SEEDS + MANY_SEEDS) if (result := simulate(seed)).problems}
    assert not found


@pytest.mark.requirement("X12")
def test_no_schedule_with_transactions_shows_a_problem() -> None:
    problems = {seed: simulate(seed, has_transactions=True).problems for seed in range(TRANSACTION_SEEDS)}
    assert not any(problems.values()), problems


@pytest.mark.slow
def test_no_schedule_of_many_with_transactions_shows_a_problem() -> None:
    seeds = range(TRANSACTION_SEEDS, TRANSACTION_SEEDS + MANY_SEEDS)
    found = {seed: result.problems for seed in seeds if (result := simulate(seed, has_transactions=True)).problems}
    assert not found


def _open_transactions_are_read(right: Any) -> Any:
    async def ends(self: Logs, offsets: Any, *, committed: bool) -> Any:
        return await right(self, offsets, committed=False)

    return ends


def _no_offset_is_done(right: Any) -> Any:
    def part(self: _Reader, key: int, ranges: Any, needed_end: int) -> ShareDelivery:
        made: ShareDelivery = right(self, key, ranges, needed_end)
        done = [each for each in made.returned if each.is_done]
        made.acquired += [(each.first, each.last, ranges[0][2]) for each in done]
        made.returned = [each for each in made.returned if not each.is_done]
        return made

    return part


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [(Logs, "ends", _open_transactions_are_read), (_Reader, "_part", _no_offset_is_done)],
    ids=["records of open transactions are acquired", "records of aborted transactions are sent"],
)
def test_a_planted_bug_of_transactions_is_found(
    owner: Any, name: str, wrong: Callable[[Any], Any], patch: Patch
) -> None:
    patch.wrap(owner, name, wrong)
    assert any(simulate(seed, has_transactions=True).problems for seed in range(TRANSACTION_SEEDS))


def test_a_seed_replays_its_history_and_things_go_wrong_in_it() -> None:
    first, again = simulate(7), simulate(7)
    assert first == again
    assert first.kills > 0
    assert first.changes > 0
    assert first.acquired > 100


def _answers_before_it_is_stored(right: Any) -> Any:
    async def store(self: GroupPartitions, keys: Iterable[int]) -> bool:
        asyncio.get_running_loop().create_task(right(self, list(keys)))
        return not self.is_over

    return store


def _unknown_is_stored(right: Any) -> Any:
    async def send(self: GroupPartitions, rows: Any) -> list[bool]:
        try:
            stored: list[bool] = await right(self, rows)
        except FencedError:
            raise
        except HeadraceError:
            return [True] * len(rows)
        return stored

    return send


def _no_order(right: Any) -> Any:
    """The metastore takes a write that arrives after a later one."""

    async def store(self: FakeGroupApi, *args: Any) -> Any:
        self.share_revisions.clear()
        return await right(self, *args)

    return store


def _a_lease_without_end(right: Any) -> Any:
    def coordinator(self: View, group_id: str) -> Any:
        self._lease_until = float("inf")
        return right(self, group_id)

    return coordinator


def _nothing_is_loaded(right: Any) -> Any:
    async def load(self: GroupPartitions) -> None:
        self._is_loaded = True

    return load


def _beginnings_are_not_stored(right: Any) -> Any:
    async def send(self: GroupPartitions, rows: Any) -> list[bool]:
        if not self.group.partitions and all(row.kept == encode_kept(()) for row in rows):
            return [True] * len(rows)
        stored: list[bool] = await right(self, rows)
        return stored

    return send


def _what_is_kept(of: Callable[[list[KeptRange]], list[KeptRange]]) -> Callable[[Any], Any]:
    return lambda right: lambda self: of(right(self))


def _what_is_done_is_forgotten(kept: list[KeptRange]) -> list[KeptRange]:
    return [each for each in kept if not each.is_done]


def _attempts_are_forgotten(kept: list[KeptRange]) -> list[KeptRange]:
    return [each for each in kept if each.is_done]


def _released_is_done(right: Any) -> Any:
    def freed(each: InFlight, attempts: int) -> InFlight:
        return InFlight(each.first, each.last, RangeState.DONE)

    return freed


def _freed_as(wrong: Callable[[Any], Any]) -> Callable[[Patch], object]:
    def plant(patch: Patch) -> None:
        freed = wrong(in_flight.freed)
        patch.replace(in_flight, "freed", freed)
        patch.replace(share_partition, "freed", freed)

    return plant


def _nothing_ends(patch: Patch) -> None:
    """Locks do not end, not even those of clients that are gone."""
    acquire = SharePartition.acquire

    def forever(
        self: SharePartition, now: float, member_id: str, log_end: int, most: int, limits: AcquireLimits, **more: bool
    ) -> list[Acquired]:
        return acquire(self, now, member_id, log_end, most, limits._replace(lock_seconds=1e6), **more)

    patch.replace(SharePartition, "acquire", forever)
    patch.replace(ShareOwner, "_release", lambda self, refs: None)


def _attempts_do_not_end(right: Any) -> Any:
    return lambda each, attempts: right(each, 1_000)


def _ahead_of_the_log(right: Any) -> Any:
    async def ends(self: Logs, offsets: Any, *, committed: bool) -> Any:
        found = await right(self, offsets, committed=committed)
        return {
            key: end._replace(end=end.end + 3) if isinstance(end, ReadableEnds) else end for key, end in found.items()
        }

    return ends


def _later_changes_count_as_stored(right: Any) -> Any:
    """What changed while a write was under way is taken for written by it."""

    async def write_once(self: GroupPartitions) -> bool:
        done: bool = await right(self)
        if done:
            for partition in self.group.partitions.values():
                partition.stored_changes = partition.changes
        return done

    return write_once


def _acquired_unstored(right: Any) -> Any:
    """Records are given out again before it is stored that an attempt ended."""

    async def acquire(self: ShareOwner, owned: GroupPartitions, *rest: Any) -> Any:
        for partition in owned.group.partitions.values():
            partition.stored_changes = 1 << 60
        return await right(self, owned, *rest)

    return acquire


def _stored_by_key(right: Any) -> Any:
    """What was stored of a partition that is gone counts for the one that comes under its key."""

    def unstored(self: GroupPartitions, keys: Iterable[int]) -> list[int]:
        most: dict[int, int] = self.__dict__.setdefault("most", {})
        partitions = self.group.partitions
        for key, each in partitions.items():
            most[key] = each.stored_changes = max(most.get(key, 0), each.stored_changes)
        return [key for key in keys if key in partitions and partitions[key].changes > most[key]]

    return unstored


def _returned_by_any_connection(right: Any) -> Any:
    """An attempt that is over gives back what the member has by another connection."""

    def give_back(self: ShareOwner, owned: GroupPartitions, turn: ShareTurn, client: ClientConnection) -> None:
        for each in turn.returned:
            newest = self._connections.get((turn.group_id, turn.member_id, each.key)) or client
            right(self, owned, ShareTurn(turn.group_id, turn.member_id, returned=[each]), newest)

    return give_back


def _agents_do_not_look_at_the_time(right: Any) -> Any:
    def init(self: ShareHandlers, *args: Any) -> None:
        right(self, *args)
        self._clock = ManualClock()

    return init


_BUGS: dict[str, Plant] = {
    "an acknowledgement is answered before it is stored": wrapped(
        GroupPartitions, "store", _answers_before_it_is_stored
    ),
    "a write with an unknown outcome is taken for stored": wrapped(GroupPartitions, "_send", _unknown_is_stored),
    "a late write replaces a later one": wrapped(FakeGroupApi, "store_share_partitions", _no_order),
    "a lease does not end": wrapped(View, "coordinator", _a_lease_without_end),
    "the next owner reads nothing": wrapped(GroupPartitions, "load", _nothing_is_loaded),
    "a beginning is not stored": wrapped(GroupPartitions, "_send", _beginnings_are_not_stored),
    "the next owner does not know what is done": wrapped(
        SharePartition, "kept", _what_is_kept(_what_is_done_is_forgotten)
    ),
    "the next owner does not know the attempts": wrapped(
        SharePartition, "kept", _what_is_kept(_attempts_are_forgotten)
    ),
    "what a member gave up is done": _freed_as(_released_is_done),
    "what a client had stays with it": _nothing_ends,
    "attempts do not end": _freed_as(_attempts_do_not_end),
    "the owner is ahead of the log": wrapped(Logs, "ends", _ahead_of_the_log),
    "changes during a write count as stored": wrapped(GroupPartitions, "_write_once", _later_changes_count_as_stored),
    "records are acquired from a state that is not stored": wrapped(ShareOwner, "_acquire", _acquired_unstored),
    "stored changes are counted by key": wrapped(GroupPartitions, "unstored", _stored_by_key),
    "a late return frees the next attempt": wrapped(ShareOwner, "_give_back", _returned_by_any_connection),
    "records are sent after their lock": wrapped(ShareHandlers, "__init__", _agents_do_not_look_at_the_time),
    "late claims are not looked for": wrapped(GroupClaims, "to_look_at", lambda right: lambda self, now: []),
}
BUGS = PlantedBugs("share groups", most=2_000)


@BUGS.cases(_BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    _BUGS[bug](trial.patch)
    for seed in trial.seeds():
        trial.saw(simulate(seed).problems)
