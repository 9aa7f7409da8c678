"""Elections: what is remembered and taken over elects as if all agents were compared; a change costs few scores."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster import routing
from headrace.agent.cluster.routing import REMEMBERED_MAX, ROLE_CHARACTERS_MAX, Elections, score
from tests.patch import Patch
from tests.seeds import examples

SHARDS = 12
node_ids = st.frozensets(st.integers(0, 9), max_size=7)
steps = st.lists(st.tuples(node_ids, st.sets(st.integers(0, SHARDS - 1), max_size=5)), min_size=2, max_size=6)


def name(shard: int) -> str:
    return f"shard:{shard}"


def best(nodes: frozenset[int], shard: int) -> int | None:
    return max(nodes, key=lambda node_id: (score(node_id, name(shard)), node_id), default=None)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The node ids of which a score was computed."""
    computed: list[int] = []

    def counted(node_id: int, role: str) -> int:
        computed.append(node_id)
        return score(node_id, role)

    monkeypatch.setattr(routing, "score", counted)
    return computed


def wrong(history: list[tuple[frozenset[int], set[int]]]) -> str | None:
    """Return the first winner that is another one than among all agents; earlier objects are asked again."""
    made: list[tuple[frozenset[int], Elections[int]]] = []
    for nodes, asked in history:
        made.append((nodes, Elections(nodes, name, made[-1][1] if made else None)))
        for known, each in made[-2:]:
            for shard in asked:
                if (winner := each.winner(shard)) != best(known, shard):
                    return f"shard={shard} agents={sorted(known)} winner={winner}"
    return None


@settings(max_examples=examples(300))
@given(steps)
def test_winners_are_those_among_all_agents(history: list[tuple[frozenset[int], set[int]]]) -> None:
    assert wrong(history) is None


def histories() -> Iterator[list[tuple[frozenset[int], set[int]]]]:
    for seed in range(200):
        rng = random.Random(seed)
        yield [
            (frozenset(rng.sample(range(10), rng.randrange(8))), set(rng.sample(range(SHARDS), 4))) for _ in range(6)
        ]


def _keeps_the_gone(self: Elections[int], node_ids: frozenset[int]) -> object:
    came = tuple(node_ids - self.node_ids)
    return {role: old._replace(came=old.came + came) for role, old in self._elected.items()}


def _forgets_who_waits(self: Elections[int], node_ids: frozenset[int]) -> object:
    came = tuple(node_ids - self.node_ids)
    return {role: old._replace(came=came) for role, old in self._elected.items() if old.node_id in node_ids}


def _counts_the_gone(self: Elections[int], node_ids: frozenset[int]) -> object:
    came = tuple(node_ids - self.node_ids)
    kept = {role: old for role, old in self._elected.items() if old.node_id in node_ids}
    return {role: old._replace(came=old.came + came) for role, old in kept.items()}


@pytest.mark.parametrize("bug", [_keeps_the_gone, _forgets_who_waits, _counts_the_gone])
def test_planted_bugs_are_found(bug: object, patch: Patch) -> None:
    assert not any(map(wrong, histories()))
    patch.replace(Elections, "_taken_over", bug)
    assert any(map(wrong, histories()))


def test_an_agent_that_comes_costs_a_score_for_each_role(scores: list[int]) -> None:
    first = Elections(range(100), name)
    before = [first.winner(shard) for shard in range(64)]
    assert len(scores) == 6_400
    scores.clear()
    assert [first.winner(shard) for shard in range(64)] == before
    assert not scores, "remembered"
    second = Elections(range(101), name, first)
    assert second.scores_needed(0) == 1
    after = [second.winner(shard) for shard in range(64)]
    assert scores == [100] * 64
    assert second.scores_needed(0) == 0
    assert all(new in (old, 100) for old, new in zip(before, after, strict=True))


def test_an_agent_that_goes_costs_the_roles_that_it_won(scores: list[int]) -> None:
    first = Elections(range(100), name)
    before = [first.winner(shard) for shard in range(64)]
    gone = before[0]
    assert gone is not None
    scores.clear()
    second = Elections(set(range(100)) - {gone}, name, first)
    after = [second.winner(shard) for shard in range(64)]
    assert len(scores) == 99 * before.count(gone)
    assert all(new == old for old, new in zip(before, after, strict=True) if old != gone)


def test_many_who_come_are_compared_once(scores: list[int]) -> None:
    first = Elections([1], name)
    assert first.winner(0) == 1
    scores.clear()
    second = Elections(range(1, 50), name, first)
    assert second.scores_needed(0) == 48
    third = Elections(range(1, 99), name, second)
    assert third.winner(0) == best(frozenset(range(1, 99)), 0)
    assert len(scores) == 97


def test_what_is_remembered_is_bounded(scores: list[int]) -> None:
    groups = Elections([1, 2], str)
    for number in range(REMEMBERED_MAX + 10):
        groups.winner(f"g{number}")
    assert len(groups._elected) == 10
    long = "g" * (ROLE_CHARACTERS_MAX + 1)
    scores.clear()
    assert groups.winner(long) == groups.winner(long)
    assert len(scores) == 4
