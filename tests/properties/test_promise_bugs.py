"""The proofs of W2, W6, W10, W14, W15, W16, X8 and hedges fail when the promise is broken.

Each named bug is planted for one.

Place: with test_commit_bugs.py (W3-W8) and tests/simulation/bugs.py; W13 has its own in tests/faults/test_torture.py.
A bug replaces one attribute; the proof then runs as it is and must fail where the bug shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.handler import FetchHandler
from headrace.agent.fetch.zone_cache.shared import SharedCache
from headrace.agent.produce import upload
from headrace.agent.produce.files import FlushReason
from headrace.agent.produce.flush_policy import (
    CommitPressure,
    FlushBudget,
    FlushPolicy,
    FlushTokens,
    FlushVerdict,
    Situation,
)
from headrace.agent.produce.flusher import ActiveBuffer
from headrace.compactor import merge
from headrace.compactor.rewrite import CopyBatches
from headrace.metastore.api.commit import FileCommit
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import CorruptError
from headrace.storage.objects.hedging import HedgePolicy
from headrace.storage.segment.writer import SegmentWriter
from load.benchmarks import ceiling as bench_ceiling
from load.workloads.committing import CommittingAgent
from tests.agent.fetch import test_zones
from tests.agent.fetch.zone_cache import test_hostile
from tests.agent.produce import test_flush_budget, test_flush_policy, test_pipeline, test_upload
from tests.compactor import test_compact
from tests.compactor.world import CompactionWorld
from tests.load import test_ceiling
from tests.patch import Patch, Plant, wrapped
from tests.storage.objects import test_hedge_policy
from tests.storage.segment import test_writer


class Bug(NamedTuple):
    """A bug and the proof that must notice it: `match` is part of the failure."""

    plant: Plant
    prove: Callable[[], Any]
    match: str
    error: type[BaseException] = AssertionError


def _from_the_last_batch(right: Any) -> Any:
    def judge(self: FlushPolicy, found: Situation, now: float) -> FlushVerdict:
        verdict: FlushVerdict = right(self, dataclasses.replace(found, opened_at=found.last_byte_at), now)
        return verdict

    return judge


def _earns_nothing(right: Any) -> Any:
    return lambda self, now: self._held


def _saves_only(right: Any) -> Any:
    return lambda self, now: self._savings.take(now)


def _paces_only(right: Any) -> Any:
    return lambda self, now: self._limit.take(now)


def _without_reserve(right: Any) -> Any:
    return lambda self, now, client_waits: right(self, now, client_waits=True)


def _hedges_for_nothing(right: Any) -> Any:
    def may_hedge(self: HedgePolicy, now: float) -> bool:
        saved = self._saved
        found: bool = right(self, now)
        self._saved = saved
        return found

    return may_hedge


def _hedges_saved_for_ever(right: Any) -> Any:
    def begin(self: HedgePolicy, size: int, now: float) -> float | None:
        saved = self._saved
        delay: float | None = right(self, size, now)
        self._saved = saved + self._percent
        return delay

    return begin


def _hedges_before_any_put(right: Any) -> Any:
    def may_hedge(self: HedgePolicy, now: float) -> bool:
        self._saved += self._percent
        found: bool = right(self, now)
        return found

    return may_hedge


def _begins_uncounted(right: Any) -> Any:
    def begin(self: HedgePolicy, size: int, now: float) -> float | None:
        delay: float | None = right(self, size, now)
        self._running = 0
        return delay

    return begin


def _counts_hedged_puts_as_quick(right: Any) -> Any:
    """Of a hedged PUT, the time since its hedge: what the second request took."""

    def end(self: HedgePolicy, size: int, seconds: float | None, now: float) -> None:
        slow = None if seconds is None else self._p95(0, now)
        right(self, size, seconds if slow is None or seconds is None or seconds < slow else seconds - slow, now)

    return end


def _at_once(right: Any) -> Any:
    return lambda self, found, now: FlushVerdict(FlushReason.IDLE, now)


def _a_call_per_range(right: Any) -> Any:
    def arrival(self: SharedCache, wanted: Any, calls: dict[int, Any]) -> Any:
        alone: dict[int, Any] = {}
        found = right(self, wanted, alone)
        calls.update({-len(calls) - 1: call for call in alone.values()})
        return found

    return arrival


def _unknown_is_same(right: Any) -> Any:
    def count(self: ZoneTraffic, path: Any, zone: str | None, size_bytes: int) -> None:
        right(self, path, zone or self._own_zone, size_bytes)

    return count


def _unsorted(patch: Patch) -> None:
    """The file is laid out in order of arrival, and the writer takes it."""
    patch.replace(upload, "_partition_of", lambda run: 0)
    _without_order_check(patch)


def _without_order_check(patch: Patch) -> None:
    def start(self: SegmentWriter, *arguments: Any) -> Any:
        self._open_sort_key = (-1, -1)
        return right(self, *arguments)

    right = patch.replace(SegmentWriter, "_start", start)


async def _prove_hostile() -> None:
    agents = await test_hostile.TwoAgents().start()
    try:
        await test_hostile.test_hostile_batches_cost_no_more_calls(agents)
    finally:
        await agents.stop()


BUGS = {
    "W2: the linger counts from the last batch": Bug(
        wrapped(FlushPolicy, "judge", _from_the_last_batch),
        test_flush_policy.test_the_linger_always_counts_from_the_first_batch,
        "FlushReason",
    ),
    "W2: nothing is buffered": Bug(
        wrapped(FlushPolicy, "judge", _at_once),
        test_pipeline.test_a_buffer_is_flushed_100_ms_after_its_first_batch,
        "done",
    ),
    "W2: a file per request": Bug(
        wrapped(ActiveBuffer, "is_full", lambda right: property(lambda self: True)),
        test_upload.test_batches_of_many_clients_and_partitions_become_one_sorted_file,
        "too many values",
        ValueError,
    ),
    "W6: batches are stored as they arrived": Bug(
        _unsorted,
        test_upload.test_batches_of_many_clients_and_partitions_become_one_sorted_file,
        "footer out of order",
        CorruptError,
    ),
    "W6: the writer takes any order": Bug(
        _without_order_check,
        lambda: test_writer.test_the_writer_refuses_partitions_out_of_order((test_writer.B, 0), (test_writer.A, 0)),
        "DID NOT RAISE",
        pytest.fail.Exception,
    ),
    "W14: a call per range": Bug(wrapped(SharedCache, "_arrival", _a_call_per_range), _prove_hostile, "1.1"),
    "W15: the rack is ignored": Bug(
        wrapped(FetchHandler, "_elsewhere", lambda right: lambda self, rack_id, partition_key: -1),
        lambda: test_zones.test_a_consumer_of_another_zone_is_sent_there_without_data(17),
        "At index 1 diff",
    ),
    "W15: a client without a zone counts as one of this zone": Bug(
        wrapped(ZoneTraffic, "count", _unknown_is_same),
        test_zones.test_bytes_of_clients_that_state_no_zone_are_counted_apart,
        "unknown",
    ),
    "X8: early flushes are never earned back": Bug(
        wrapped(FlushTokens, "_refilled", _earns_nothing),
        test_flush_budget.test_what_is_used_is_earned_back_up_to_what_can_be_saved,
        "earned back",
    ),
    "X8: early flushes cost nothing of what was saved": Bug(
        wrapped(FlushBudget, "take", _paces_only),
        test_flush_budget.test_early_flushes_are_never_more_than_what_was_saved_and_earned,
        "more than saved and earned",
    ),
    "X8: what was saved is used at any rate": Bug(
        wrapped(FlushBudget, "take", _saves_only),
        test_flush_budget.test_early_flushes_are_never_faster_than_the_highest_rate,
        "faster than the highest rate",
    ),
    "X8: idle files take the reserve": Bug(
        wrapped(FlushBudget, "available_at", _without_reserve),
        test_flush_budget.test_idle_files_leave_the_reserve_to_clients_that_wait,
        "took the reserve",
    ),
    "X8: slow commits change no rate": Bug(
        wrapped(FlushBudget, "slow_down", lambda right: lambda self, steps, now: None),
        test_flush_budget.test_slow_commits_halve_the_pace_but_never_below_what_is_earned,
        "rate limit",
    ),
    "X8: no commit counts as slow": Bug(
        wrapped(CommitPressure, "committed", lambda right: lambda self, seconds, now: None),
        test_flush_policy.test_early_flushes_slow_down_while_commits_are_slow,
        "halved while commits are slow",
    ),
    "hedges: they use up nothing": Bug(
        wrapped(HedgePolicy, "may_hedge", _hedges_for_nothing),
        test_hedge_policy.test_no_more_puts_are_hedged_than_the_share_of_all,
        "more hedges than the share",
    ),
    "hedges: a PUT that asks earns twice": Bug(
        wrapped(HedgePolicy, "may_hedge", _hedges_before_any_put),
        test_hedge_policy.test_no_more_puts_are_hedged_than_the_share_of_all,
        "more hedges than the share",
    ),
    "hedges: they are saved without end": Bug(
        wrapped(HedgePolicy, "begin", _hedges_saved_for_ever),
        test_hedge_policy.test_no_more_puts_are_hedged_than_the_share_of_all,
        "saved without a limit",
    ),
    "hedges: a request to slow down is ignored": Bug(
        wrapped(HedgePolicy, "throttled", lambda right: lambda self, now: None),
        test_hedge_policy.test_no_hedge_while_s3_throttles,
        "hedged while S3 throttles",
    ),
    "hedges: uploads that end are counted, those that begin are not": Bug(
        wrapped(HedgePolicy, "begin", _begins_uncounted),
        test_hedge_policy.test_no_hedge_while_all_places_for_uploads_are_taken,
        "hedged while uploads queue",
    ),
    "hedges: they lower the p95": Bug(
        wrapped(HedgePolicy, "end", _counts_hedged_puts_as_quick),
        test_hedge_policy.test_under_a_log_normal_tail_five_of_a_hundred_are_hedged_after_the_real_p95,
        "the p95 is 102 ms",
    ),
}


@pytest.mark.parametrize("name", BUGS)
async def test_a_bug_fails_the_proof(name: str, patch: Patch) -> None:
    bug = BUGS[name]
    bug.plant(patch)
    with pytest.raises(bug.error, match=bug.match):
        await _prove(bug)


async def _prove(bug: Bug) -> None:
    if (running := bug.prove()) is not None:
        await running


MERGE_BUGS: dict[str, Plant] = {
    "W10: extents are never joined": wrapped(
        merge.GrowingExtent, "takes", lambda right: lambda self, extent: not self._inputs
    ),
    "W10: batches are never merged": wrapped(merge, "_rewriter", lambda right: lambda *arguments: CopyBatches()),
}


@pytest.mark.parametrize("name", MERGE_BUGS)
async def test_a_merge_that_merges_nothing_fails_the_proof(
    name: str, metastore: PostgresMetastore, metastore_url: str, patch: Patch
) -> None:
    MERGE_BUGS[name](patch)
    world = CompactionWorld(metastore, metastore_url)
    await world.begin()
    with pytest.raises(AssertionError, match="all"):
        await test_compact.test_ten_times_the_batches_leave_the_same_rows_and_a_replay_of_as_few_reads(world)
    await world.service.close()


async def test_a_commit_that_is_counted_and_not_made_fails_the_ceiling(
    metastore_url: str, patch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W16: every other file without a producer is only counted."""
    commit, calls = CommittingAgent.commit, 0

    async def commit_sometimes(self: CommittingAgent, file: FileCommit) -> float:
        nonlocal calls
        calls += 1
        is_idempotent = file.batches[0].producer_id >= 0  # a gap in its sequence would be refused
        return await commit(self, file) if is_idempotent or calls % 2 else 1e-6

    patch.replace(CommittingAgent, "commit", commit_sometimes)
    with pytest.raises(AssertionError, match="counted as committed"):
        await test_ceiling.test_the_ceiling_is_measured(metastore_url, capsys)


@pytest.mark.slow
async def test_a_rate_of_twice_the_work_fails_the_ceiling(
    metastore_url: str, patch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W16: what is printed is not what was measured."""
    patch.replace(bench_ceiling, "GIB", 1 << 29)
    with pytest.raises(AssertionError, match="GiB/s of 1 KiB"):
        await test_ceiling.test_the_ceiling_is_measured(metastore_url, capsys)
