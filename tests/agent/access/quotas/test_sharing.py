"""Several agents keep one rate together: simulated second by second, with the real policy on both sides."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.access.quotas import service
from headrace.agent.access.quotas.limits import BURST_SECONDS, PRODUCE, Bucket, BucketKey, SharedBucket
from headrace.agent.access.quotas.service import (
    NO_USE,
    Neighbours,
    OthersUse,
    Use,
    decode_report,
    encode_report,
    own_share,
)
from tests.patch import Patch
from tests.seeds import examples

KEY = BucketKey(PRODUCE, "alice", None)
RATE = 1_000_000.0
STEP = 0.05
EXCHANGE = 0.5
Demand = Callable[[int, float], float]
"""Bytes per request that a client at this agent sends now, 0 for none."""


class Agent:
    """Its bucket, and what it learned of the others."""

    def __init__(self, node_id: int, rate: float) -> None:
        self.node_id = node_id
        self.bucket = SharedBucket(rate, 0.0)
        self.neighbours = Neighbours()
        self.muted_until = 0.0
        self.heard_at = 0.0

    def send(self, size: float, now: float) -> float:
        """Return what the client sends while it is not muted, in one step."""
        sent = 0.0
        while size and now >= self.muted_until and sent < 4 * RATE * STEP:
            sent += size
            wait = self.bucket.spend(size, now)
            if wait:
                self.muted_until = now + wait
        return sent

    def report(self, now: float) -> str:
        return encode_report({KEY: Use(1, self.bucket.used, now < self.muted_until)})

    def hear(self, reports: dict[int, str], now: float) -> None:
        others = {node_id: decode_report(text) for node_id, text in reports.items() if node_id != self.node_id}
        heard = self.neighbours.heard(others, now).get(KEY, NO_USE)
        self.bucket.correct(heard.used, own_share(self.bucket.rate, heard, now - self.heard_at), now)
        self.heard_at = now
        self.muted_until = now + self.bucket.wait(now) if self.bucket.level(now) < 0 else 0.0


def simulate(count: int, demand: Demand, seconds: float, *, seed: int = 1, lose: float = 0.0) -> list[float]:
    """Return what each agent let pass. `lose`: the part of exchanges that fail."""
    rng = random.Random(seed)
    agents = [Agent(node_id, RATE) for node_id in range(count)]
    table: dict[int, str] = {agent.node_id: agent.report(0.0) for agent in agents}
    for agent in agents:
        agent.hear(table, 0.0)
    passed = [0.0] * count
    turns = round(EXCHANGE / STEP)
    offsets = [rng.randrange(turns) for _ in agents]
    for step in range(round(seconds / STEP)):
        now = step * STEP
        for agent in agents:
            passed[agent.node_id] += agent.send(demand(agent.node_id, now), now)
            if (step + offsets[agent.node_id]) % turns == 0 and rng.random() >= lose:
                table[agent.node_id] = agent.report(now)
                agent.hear(table, now)
    return passed


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [1_000, 100_000])
def test_the_rate_is_kept_within_ten_percent_over_a_minute(count: int, size: int) -> None:
    passed = simulate(count, lambda node_id, now: size, 60.0)
    assert sum(passed) / 60 == pytest.approx(RATE, rel=0.1 if count <= 3 else 0.2)
    assert max(passed) < 2 * min(passed), "each agent gets a share"


@pytest.mark.requirement("X2")
def test_a_client_may_use_the_whole_rate_at_one_agent() -> None:
    passed = simulate(3, lambda node_id, now: 10_000 * (node_id == 1), 60.0)
    assert passed == [0, pytest.approx(60 * RATE, rel=0.1), 0]


@pytest.mark.requirement("X2")
def test_a_client_that_moves_between_agents_keeps_its_rate() -> None:
    passed = simulate(3, lambda node_id, now: 10_000 * (node_id == int(now / 5) % 3), 60.0)
    assert sum(passed) == pytest.approx(60 * RATE, rel=0.1)


@settings(max_examples=examples(25))
@given(st.integers(1, 4), st.integers(0, 2**32), st.floats(0.0, 0.5))
def test_no_pattern_of_demand_gets_more_than_the_rate(count: int, seed: int, lose: float) -> None:
    """Also clients that pause and come back at other agents, and agents that do not learn of each other for a while."""
    rng = random.Random(seed)
    plan = [[rng.choice((0, 0, 1_000, 50_000)) for _ in range(60)] for _ in range(count)]
    passed = simulate(count, lambda node_id, now: plan[node_id][int(now)], 60.0, seed=seed, lose=lose)
    assert sum(passed) <= most_allowed(count, lose)


def most_allowed(count: int, lose: float = 0.0) -> float:
    """The rate, one burst of each agent, and what agents cannot know of each other between two exchanges."""
    unknown = EXCHANGE * (1 if lose == 0 else 8)
    return RATE * (60 + count * BURST_SECONDS + count * unknown) + count * 50_000


@pytest.mark.requirement("X2")
def test_agents_that_forget_what_others_used_would_be_found(patch: Patch) -> None:
    """A planted bug: each agent keeps the rate for itself."""
    patch.replace(SharedBucket, "correct", lambda self, used, share, now: None)
    assert sum(simulate(3, lambda node_id, now: 10_000, 60.0)) > most_allowed(3)


def test_agents_that_count_a_report_twice_would_be_found(patch: Patch) -> None:
    """A planted bug: totals are taken for differences."""
    patch.replace(Neighbours, "_since_last", lambda self, node_id, key, use: use.used)
    passed = simulate(3, lambda node_id, now: 10_000, 60.0)
    assert sum(passed) != pytest.approx(60 * RATE, rel=0.1)


def test_a_debt_is_paid_before_the_next_request() -> None:
    bucket = Bucket(100.0, 0.0)
    assert bucket.spend(100, 0.0) == 0.0
    assert bucket.spend(300, 0.0) == 3.0
    assert bucket.wait(1.0) == 2.0
    assert bucket.wait(3.0) == 0.0
    assert not bucket.is_full(3.5)
    assert bucket.is_full(4.0)
    assert bucket.level(100.0) == 100.0


def test_a_raised_quota_shortens_the_wait_at_once() -> None:
    bucket = SharedBucket(100.0, 0.0)
    assert bucket.spend(1_100, 0.0) == 10.0
    bucket.change_rate(1_000.0, 0.0)
    assert bucket.wait(0.0) == 1.0


def test_what_was_used_before_an_agent_was_heard_of_does_not_count() -> None:
    neighbours = Neighbours()
    assert neighbours.heard({1: {KEY: Use(7, 500.0, False)}}, 0.0) == {}
    assert neighbours.heard({1: {KEY: Use(7, 700.0, True)}}, 1.0) == {KEY: OthersUse(200.0, 0.0, 1)}
    made_anew = neighbours.heard({1: {KEY: Use(8, 50.0, False)}}, 2.0)
    assert made_anew == {KEY: OthersUse(50.0, 50.0, 0)}
    new_limit = BucketKey(PRODUCE, "bob", None)
    assert neighbours.heard({1: {new_limit: Use(9, 20.0, False)}}, 3.0) == {new_limit: OthersUse(20.0, 20.0, 0)}
    neighbours.heard({}, 100.0)
    assert not neighbours._last, "agents that are gone are forgotten"


def test_a_report_has_a_bounded_size() -> None:
    many = {BucketKey(PRODUCE, f"user-{number}", None): Use(1, float(number), False) for number in range(5_000)}
    decoded = decode_report(encode_report(many))
    assert len(decoded) == service.ENTRIES_MAX
    assert min(use.used for use in decoded.values()) == 4_000


def test_agents_without_waiting_clients_leave_the_rest() -> None:
    assert own_share(90.0, NO_USE, 1.0) == 90.0
    assert own_share(90.0, OthersUse(30.0, 30.0, 0), 1.0) == 60.0
    assert own_share(90.0, OthersUse(60.0, 0.0, 2), 1.0) == 30.0
    assert own_share(90.0, OthersUse(500.0, 500.0, 0), 1.0) > 0
