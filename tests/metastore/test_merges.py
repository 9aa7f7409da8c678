"""The commit's rule for children that are merged is the one of partitions/merging.py; planted bugs differ."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.partitions.merging import MergePhase, MergeTimes, MergeVerdict, PartitionMerge
from tests.metastore.key_claims import (
    CHILD,
    MOVED,
    NOTHING,
    OTHER,
    PARENT,
    Connection,
    Said,
    SqlRule,
    ask_both,
    columns,
)
from tests.metastore.sql_sources import broken
from tests.planted import PlantedBugs, Trial
from tests.seeds import seeds

pytestmark = pytest.mark.requirement("X5")
OLDER = 9 << 24 | 12
"""An alias that is settled; its keys belong to CHILD while that is a partition."""
VIA_CHILD = Said(alias=CHILD - PARENT)
OUTCOMES = {
    MergeVerdict.IN_CHILD: BatchOutcome.APPENDED,
    MergeVerdict.IN_PARENT: BatchOutcome.APPENDED,
    MergeVerdict.SEND_AGAIN: BatchOutcome.SENT_BACK,
    MergeVerdict.REFUSED: BatchOutcome.MOVED_KEY,
}
TIMES = MergeTimes(
    lag_most=0, pause_most_ms=800, pause_again_ms=100, show_after_ms=50, settle_after_ms=4_000, producer_quiet_ms=300
)


@pytest.fixture
def database(one_session: Connection) -> Iterator[Connection]:
    """A doubling with its boundary, and a halving that begins; everything is rolled back."""
    one_session.execute("INSERT INTO partition_splits VALUES (%s, %s, gen_random_uuid(), 1, 1, 0, 0)", (PARENT, CHILD))
    one_session.execute(
        "INSERT INTO partition_merges VALUES (%s, %s, gen_random_uuid(), merge_draining(), 0, %s, %s),"
        " (%s, %s, gen_random_uuid(), merge_settled(), 0, 0, 0)",
        (CHILD, PARENT, TIMES.pause_most_ms, TIMES.producer_quiet_ms, OLDER, CHILD),
    )
    yield one_session
    one_session.rollback()


class SqlMerge(SqlRule):
    """PartitionMerge's."""

    phase = MergePhase.DRAINING

    def enter(self, phase: MergePhase, now_ms: int) -> None:
        """Do what the steps of the controller do to the tables (test_halving_topics.py)."""
        if phase is self.phase:
            return
        self.phase = phase
        self._database.execute(
            "UPDATE partition_merges SET phase = %s, since_ms = %s WHERE child_key = %s", (phase, now_ms, CHILD)
        )
        if phase is MergePhase.MERGED:
            self._database.execute("DELETE FROM partition_splits")
            self._database.execute("UPDATE partition_merges SET parent_key = %s WHERE child_key = %s", (PARENT, OLDER))
        if phase is MergePhase.SETTLED:
            self._database.execute("DELETE FROM merge_producers")

    def to_child(self, producer_id: int, now_ms: int) -> BatchOutcome:
        """Make a batch from an agent that knows whether the child is an alias."""
        if self.phase >= MergePhase.MERGED:
            return self.commit(PARENT, producer_id, VIA_CHILD, now_ms)
        return super().to_child(producer_id, now_ms)

    def commit(
        self, key: int, producer_id: int, said: Said, now_ms: int, *, accepted: bool | None = None
    ) -> BatchOutcome:
        prod, ids = (1, [producer_id]) if producer_id else (0, [])
        (verdict,) = self.judge(now_ms, [key], [1], [prod], ids, [said])
        taken = verdict == BatchOutcome.APPENDED if accepted is None else accepted
        self._database.execute(
            "SELECT note_merges(%s, %s, %s::int[], %s::int[], %s::bigint[], %s::int[], %s::int[],"
            " %s::int[], %s::boolean[])",
            (now_ms, [key], [1], [prod], ids, *columns([said])[1:], [verdict], [taken]),
        )
        return BatchOutcome(verdict)

    def judge(
        self, now_ms: int, keys: list[int], part: list[int], prod: list[int], ids: list[int], said: list[Said]
    ) -> list[int]:
        """The verdicts of a call."""
        row = self._database.execute(
            "SELECT judge_merges(now, parts, part, prod, ids, counts, keys, aliases,"
            " judge_splits(now, parts, part, prod, ids, counts, keys, aliases))"
            " FROM (SELECT %s::bigint, %s::bigint[], %s::int[], %s::int[], %s::bigint[],"
            " %s::int[], %s::int[], %s::int[]) AS call (now, parts, part, prod, ids, counts, keys, aliases)",
            (now_ms, keys, part, prod, ids, *columns(said)),
        ).fetchone()
        assert row is not None
        found: list[int] = row[0]
        return found


def first_difference(sql: SqlMerge, seed: int, steps: int = 150) -> str | None:
    """A random history of three producers and of a controller, asked of both."""
    rng = random.Random(seed)
    rule = PartitionMerge(TIMES)
    now, shown_ms, producers = 0, 0, [rng.randrange(1, 1 << 40) for _ in range(3)]
    for step in range(steps):
        now += rng.choice((1, 20, 150, 299, 300, 400))
        if rng.random() < 0.15:
            before = rule.phase
            rule.advance(5, [rng.choice((4, 5, 5))] if rule.phase else [5], now)
            shown_ms = now if rule.phase is not before else shown_ms
            rule.settle(shown_ms, now)
            sql.enter(rule.phase, now)
        wanted, got = ask_both(rng, rule, sql, rng.choice(producers), now)
        if OUTCOMES[wanted] is not got:
            return f"seed={seed} step={step} phase={rule.phase} wanted={wanted} got={got}"
    return None


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 16)))
def test_random_histories_have_the_rules_verdicts(database: Connection, seed: int) -> None:
    assert first_difference(SqlMerge(database), seed) is None


PLANTED = {
    "a paused child takes batches": ("(phase = merge_paused() AND", "(false AND"),
    "a pause that no controller undoes has no end": ("p_now_ms - since_ms < pause_most_ms", "true"),
    "a child that drains takes nothing": (
        "phase IN (merge_merged(), merge_settled())\n                           OR",
        "true\n                           OR",
    ),
    "the doubling's verdict is forgotten": ("WHEN p_split[i] <> batch_appended() THEN p_split[i]", "WHEN false THEN 0"),
    "moved keys at once": (">= b.producer_quiet_ms", ">= 0"),
    "a producer that is unknown need not wait": ("coalesce(k.child_ms, p_now_ms)", "coalesce(k.child_ms, 0)"),
    "who has switched is not refused": ("b.phase = merge_merged() AND k.has_switched", "false"),
    "what stays in the parent waits": ("count >= 0 OR keys = keys_stay() AS stays", "count >= 0 AS stays"),
    "a switch is forgotten": ("bool_or(has_moved AND is_accepted)", "false"),
    "what came for the child is forgotten": (
        "CASE WHEN bool_or(comes) THEN p_now_ms ELSE",
        "CASE WHEN false THEN 0 ELSE",
    ),
}


BUGS = PlantedBugs("merges of partitions")


@BUGS.cases(PLANTED)
def test_planted_bugs_have_other_verdicts(bug: str, trial: Trial, database: Connection) -> None:
    database.execute(broken("judge_merges", [PLANTED[bug]]).encode())
    for seed in trial.seeds():
        with database.transaction(force_rollback=True):
            trial.saw(first_difference(SqlMerge(database), seed))


@pytest.fixture
def merged(database: Connection) -> SqlMerge:
    """Since 1,000 ms."""
    sql = SqlMerge(database)
    sql.enter(MergePhase.MERGED, 1_000)
    return sql


def test_a_producer_has_switched_only_with_a_batch_that_was_appended(merged: SqlMerge) -> None:
    assert merged.to_parent(7, True, 1_000) is BatchOutcome.SENT_BACK
    late = 1_000 + TIMES.producer_quiet_ms
    assert merged.commit(PARENT, 7, MOVED, late, accepted=False) is BatchOutcome.APPENDED, "a wrong sequence"
    assert merged.to_child(7, late + 1) is BatchOutcome.APPENDED


def test_an_agent_that_does_not_know_of_the_alias_is_sent_back(merged: SqlMerge) -> None:
    for producer in (0, 7):
        assert merged.commit(CHILD, producer, NOTHING, 1_001) is BatchOutcome.SENT_BACK
        assert merged.commit(PARENT, producer, NOTHING, 1_001) is BatchOutcome.SENT_BACK


def test_an_agent_that_knows_an_alias_that_is_none_is_sent_back(database: Connection) -> None:
    sql = SqlMerge(database)
    assert sql.commit(PARENT, 7, VIA_CHILD, 1) is BatchOutcome.SENT_BACK
    assert sql.commit(OTHER, 7, VIA_CHILD, 1) is BatchOutcome.SENT_BACK
    sql.enter(MergePhase.MERGED, 1_000)
    assert sql.commit(OTHER, 7, VIA_CHILD, 1_001) is BatchOutcome.SENT_BACK, "of another partition"


def test_an_older_alias_goes_with_the_child(database: Connection) -> None:
    sql, older = SqlMerge(database), Said(alias=OLDER - PARENT)
    assert sql.commit(CHILD, 7, older, 1) is BatchOutcome.APPENDED
    sql.enter(MergePhase.PAUSED, 2)
    assert sql.commit(CHILD, 7, older, 3) is BatchOutcome.SENT_BACK
    sql.enter(MergePhase.MERGED, 4)
    assert sql.commit(CHILD, 7, older, 5) is BatchOutcome.SENT_BACK
    assert sql.commit(PARENT, 7, older, 5) is BatchOutcome.APPENDED


def test_clients_that_send_counts_do_not_wait_and_place_records_again(merged: SqlMerge) -> None:
    assert merged.commit(PARENT, 7, Said(4), 1_001) is BatchOutcome.APPENDED
    assert merged.commit(CHILD, 7, Said(8), 1_001) is BatchOutcome.SENT_BACK


def test_batches_without_a_producer_wait_for_nothing(merged: SqlMerge) -> None:
    assert merged.to_child(0, 1_001) is BatchOutcome.APPENDED
    assert merged.to_parent(0, True, 1_001) is BatchOutcome.APPENDED
    assert merged.to_child(0, 1_002) is BatchOutcome.APPENDED


def test_a_call_with_batches_for_both_is_judged_as_if_the_childs_came_first(merged: SqlMerge) -> None:
    merged.to_child(7, 1_001)
    late = 1_001 + TIMES.producer_quiet_ms
    said = [MOVED, VIA_CHILD, MOVED, NOTHING]
    appended = BatchOutcome.APPENDED
    judged = merged.judge(late, [PARENT, OTHER], [1, 1, 1, 2], [1, 2, 3, 0], [7, 7, 8], said)
    assert judged == [BatchOutcome.SENT_BACK, appended, BatchOutcome.SENT_BACK, appended]
    judged = merged.judge(late, [PARENT, OTHER], [1, 1], [1, 2], [7, 8], [MOVED, VIA_CHILD])
    assert judged == [appended, appended]
