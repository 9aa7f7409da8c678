"""The commit's rule for partitions that are split in two is the one of partitions/splitting.py; planted bugs differ."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.partitions.splitting import PartitionSplit, SplitVerdict
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
OUTCOMES = {
    SplitVerdict.APPENDED: BatchOutcome.APPENDED,
    SplitVerdict.SEND_AGAIN: BatchOutcome.SENT_BACK,
    SplitVerdict.REFUSED: BatchOutcome.MOVED_KEY,
}
QUIET_MS, BOUNDARY_QUIET_MS = 300, 900


@pytest.fixture
def database(one_session: Connection) -> Iterator[Connection]:
    """One split; everything is rolled back."""
    one_session.execute(
        "INSERT INTO partition_splits VALUES (%s, %s, gen_random_uuid(), %s, %s, 0, NULL)",
        (PARENT, CHILD, QUIET_MS, BOUNDARY_QUIET_MS),
    )
    yield one_session
    one_session.rollback()


class SqlSplit(SqlRule):
    """PartitionSplit's."""

    def commit(
        self, key: int, producer_id: int, said: Said, now_ms: int, *, accepted: bool | None = None
    ) -> BatchOutcome:
        self._settle(now_ms)
        self._database.execute("SELECT lock_splits(%s)", ([key],))
        prod, ids = (1, [producer_id]) if producer_id else (0, [])
        counts, keys, aliases = columns([said])
        row = self._database.execute(
            "SELECT judge_splits(%s, %s, %s::int[], %s::int[], %s::bigint[], %s::int[], %s::int[], %s::int[])",
            (now_ms, [key], [1], [prod], ids, counts, keys, aliases),
        ).fetchone()
        assert row is not None
        (verdict,) = row[0]
        taken = verdict == BatchOutcome.APPENDED if accepted is None else accepted
        self._database.execute(
            "SELECT note_split_batches(%s, %s, %s::int[], %s::int[], %s::bigint[], %s::int[], %s::int[],"
            " %s::boolean[])",
            (now_ms, [key], [1], [prod], ids, keys, [verdict], [taken] if producer_id else []),
        )
        return BatchOutcome(verdict)

    def _settle(self, now_ms: int) -> None:
        self._database.execute(
            "UPDATE partition_splits SET boundary = 0 WHERE %s - last_moved_ms >= boundary_quiet_ms", (now_ms,)
        )


def first_difference(sql: SqlSplit, seed: int, steps: int = 120) -> str | None:
    """A random history of three producers, asked of both."""
    rng = random.Random(seed)
    rule = PartitionSplit(0, producer_quiet_ms=QUIET_MS, boundary_quiet_ms=BOUNDARY_QUIET_MS)
    now, producers = 0, [rng.randrange(1, 1 << 40) for _ in range(3)]
    for step in range(steps):
        now += rng.choice((1, 20, 150, 299, 300, 400 if step < steps - 10 else 900))
        wanted, got = ask_both(rng, rule, sql, rng.choice(producers), now)
        if OUTCOMES[wanted] is not got:
            return f"seed={seed} step={step} wanted={wanted} got={got}"
    return None


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 16)))
def test_random_histories_have_the_rules_verdicts(database: Connection, seed: int) -> None:
    assert first_difference(SqlSplit(database), seed) is None


PLANTED = {
    "a producer is never sent back": (
        "WHEN b.producer_id IS NOT NULL AND k.moved_ms IS NULL THEN batch_sent_back()",
        "",
    ),
    "a child takes batches at once": (">= b.producer_quiet_ms", ">= 0"),
    "a producer that is unknown need not wait": ("coalesce(k.moved_ms, p_now_ms)", "coalesce(k.moved_ms, 0)"),
    "who has switched is not refused": ("b.has_boundary OR k.has_switched THEN", "b.has_boundary THEN"),
    "moved keys behind the boundary": ("b.has_boundary OR k.has_switched THEN", "k.has_switched THEN"),
    "batches without moved keys are refused": (
        "WHEN b.stays THEN batch_appended()",
        "",
    ),
    "a switch is forgotten": ("bool_or(for_child AND accepted)", "false"),
    "what came to the parent is forgotten": (
        "CASE WHEN bool_or(moves) THEN p_now_ms ELSE",
        "CASE WHEN false THEN 0 ELSE",
    ),
    "the boundary does not wait": ("SET last_moved_ms = p_now_ms", "SET last_moved_ms = last_moved_ms"),
}


BUGS = PlantedBugs("splits of partitions")


@BUGS.cases(PLANTED)
def test_planted_bugs_have_other_verdicts(bug: str, trial: Trial, database: Connection) -> None:
    database.execute(broken("judge_splits", [PLANTED[bug]]).encode())
    for seed in trial.seeds():
        with database.transaction(force_rollback=True):
            trial.saw(first_difference(SqlSplit(database), seed))


def test_a_producer_has_switched_only_with_a_batch_that_was_appended(database: Connection) -> None:
    split = SqlSplit(database)
    assert split.to_child(7, 100) is BatchOutcome.SENT_BACK
    late = 100 + QUIET_MS
    assert split.commit(CHILD, 7, NOTHING, late, accepted=False) is BatchOutcome.APPENDED, "but its sequence was wrong"
    assert split.to_parent(7, True, late + 1) is BatchOutcome.APPENDED


def test_an_agent_that_does_not_know_of_the_split_is_sent_back(database: Connection) -> None:
    split = SqlSplit(database)
    assert split.commit(PARENT, 0, NOTHING, 1) is BatchOutcome.SENT_BACK
    assert split.commit(PARENT, 7, NOTHING, 1) is BatchOutcome.SENT_BACK


def test_clients_that_send_counts_do_not_wait(database: Connection) -> None:
    split = SqlSplit(database)
    assert split.commit(PARENT, 7, Said(8), 1) is BatchOutcome.APPENDED
    assert split.commit(CHILD, 7, Said(8), 2) is BatchOutcome.APPENDED


def test_batches_without_a_producer_wait_for_nothing_and_are_refused_behind_the_boundary(database: Connection) -> None:
    split = SqlSplit(database)
    assert split.to_child(0, 1) is BatchOutcome.APPENDED
    assert split.to_parent(0, True, 2) is BatchOutcome.APPENDED
    assert split.to_parent(0, True, 2 + BOUNDARY_QUIET_MS) is BatchOutcome.MOVED_KEY
    assert split.to_parent(0, False, 2 + BOUNDARY_QUIET_MS) is BatchOutcome.APPENDED


def test_a_call_with_batches_for_both_is_judged_as_if_the_parents_came_first(database: Connection) -> None:
    split = SqlSplit(database)
    split.to_parent(7, True, 0)
    row = database.execute(
        "SELECT judge_splits(%s, %s, '{1,2,2,3}', '{1,2,3,0}', %s, %s, %s::int[], %s::int[])",
        (QUIET_MS, [PARENT, CHILD, OTHER], [7, 7, 8], *columns([MOVED, NOTHING, NOTHING, NOTHING])),
    ).fetchone()
    assert row is not None
    sent_back = BatchOutcome.SENT_BACK
    assert row[0] == [BatchOutcome.APPENDED, sent_back, sent_back, BatchOutcome.APPENDED]
