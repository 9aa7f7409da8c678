"""The files that go into the metastore: each reason against it, and the agent's share of the rate (X13)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from headrace.agent.produce.inline_policy import (
    AGAIN_S,
    ASSUMED_PUT_S,
    BEHIND_FACTOR,
    RETAINED_WAL_BYTES,
    STATE_SECONDS,
    InlineLimits,
    InlinePolicy,
    InlineReason,
)
from headrace.agent.produce.inline_watch import IDLE_PAUSE_S, inline_limits
from headrace.config.settings import Settings
from headrace.metastore.api.inline import NO_SLOT, InlineState
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X13")
LIMITS = InlineLimits(file_bytes=1_000, bytes_s=10_000, held_bytes=100_000, move_s=30)
SOUND = InlineState(
    slot=3, free_slots=9, held_bytes=0, oldest_ms=0, archive_fails=False, retained_wal_bytes=0, asked_ms=-1
)


def policy_with(state: InlineState | None = SOUND, limits: InlineLimits = LIMITS) -> InlinePolicy:
    policy = InlinePolicy(limits)
    if state is not None:
        policy.learned(state, 100.0)
    return policy


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, InlineReason.UNKNOWN),
        (SOUND._replace(slot=NO_SLOT), InlineReason.HELD),
        (SOUND._replace(held_bytes=100_000), InlineReason.HELD),
        (SOUND._replace(oldest_ms=30_000 * BEHIND_FACTOR + 1), InlineReason.BEHIND),
        (SOUND._replace(archive_fails=True), InlineReason.WAL),
        (SOUND._replace(retained_wal_bytes=RETAINED_WAL_BYTES + 1), InlineReason.WAL),
        (SOUND, None),
    ],
)
def test_what_the_slots_say(state: InlineState | None, reason: InlineReason | None) -> None:
    policy = policy_with(state)
    assert policy.why_not(1_000, 100.0) is reason
    assert policy.take(1_000, 100.0) == (3 if reason is None else NO_SLOT)


def test_a_large_file_and_a_limit_of_nothing() -> None:
    assert policy_with().why_not(1_001, 100.0) is InlineReason.SIZE
    none = InlineLimits(file_bytes=0, bytes_s=10_000, held_bytes=100_000, move_s=30)
    assert policy_with(limits=none).why_not(1, 100.0) is InlineReason.OFF


def test_a_state_counts_for_some_time_only() -> None:
    policy = policy_with()
    assert STATE_SECONDS > 2 * IDLE_PAUSE_S
    assert policy.why_not(1, 100.0 + STATE_SECONDS) is None
    assert policy.why_not(1, 100.1 + STATE_SECONDS) is InlineReason.UNKNOWN


def test_commits_that_are_slower_than_puts_make_it_wait_and_try_again() -> None:
    policy = policy_with()
    for _ in range(50):
        policy.stored(0.045)
        policy.committed(0.050, 100.0)
    assert policy.why_not(1, 100.0) is None
    policy.committed(0.5, 100.0)
    assert policy.why_not(1, 100.0) is InlineReason.SLOW
    assert policy.why_not(1, 100.0 + AGAIN_S) is None
    policy.committed(0.2, 111.0)
    assert policy.why_not(1, 111.0) is InlineReason.SLOW


def test_commits_can_be_slow_before_a_put_was_seen() -> None:
    policy = policy_with()
    policy.committed(ASSUMED_PUT_S, 100.0)
    assert policy.why_not(1, 100.0) is None
    for _ in range(50):
        policy.committed(0.5, 100.0)
    assert policy.why_not(1, 100.0) is InlineReason.SLOW


def test_on_a_directory_commits_of_milliseconds_are_not_slow() -> None:
    policy = policy_with()
    policy.stored(0.001)
    policy.committed(0.009, 100.0)
    assert policy.why_not(1, 100.0) is None


def test_refused_requests_are_counted_by_reason() -> None:
    reasons = list[InlineReason]()
    policy = InlinePolicy(LIMITS, reasons.append)
    assert policy.is_refused(1, 100.0, "c")
    policy.learned(SOUND, 100.0)
    assert policy.is_refused(2_000, 100.0, "c")
    assert not policy.is_refused(1, 100.0, "c")
    assert reasons == [InlineReason.UNKNOWN, InlineReason.SIZE]


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_the_rate_goes_into_the_metastore(seed: int) -> None:
    """No time has more than the rate, a second's burst, and one file."""
    rng = random.Random(seed)
    policy, now, taken = policy_with(), 100.0, list[tuple[float, int]]()
    for _ in range(2_000):
        now += rng.choice((0.0, 0.001, 0.1, 2.0))
        policy.learned(SOUND, now)
        size = rng.randint(1, 1_000)
        if policy.take(size, now) != NO_SLOT:
            taken.append((now, size))
    for first in range(0, len(taken), 97):
        total = 0
        for at, size in taken[first:]:
            total += size
            assert total <= (at - taken[first][0]) * 10_000 + 10_000 + 1_000


def test_an_agent_has_its_share_of_the_clusters_rate() -> None:
    settings = Settings(low_latency_max_bytes_per_second=30_000_000)
    rates: Callable[[int], float] = lambda agents: inline_limits(settings, agents).bytes_s  # noqa: E731
    assert [rates(agents) for agents in (0, 1, 3)] == [30e6, 30e6, 10e6]


def flood(clients: Sequence[str], quiet: str, seconds: int = 20) -> tuple[float, int]:
    """Each of these wants twice the agent's rate, the quiet one a hundredth; what they got of the rate, and how often
    the quiet one was refused."""
    policy, got, refused = policy_with(), 0, 0
    for step in range(seconds * 100):
        now = 100.0 + step / 100
        policy.learned(SOUND, now)
        for client in clients:
            if not policy.is_refused(200, now, client):
                policy.take(200, now)
                got += 200
        if step % 100 == 99:
            refused += policy.is_refused(100, now, quiet)
            policy.take(100, now)
    return got / (LIMITS.bytes_s * seconds), refused


def check_shares() -> None:
    for clients in (["10.0.0.1"], [f"10.0.0.{number}" for number in range(8)]):
        part, refused = flood(clients, "10.0.1.1")
        assert part > 0.9, "what is there is used"
        assert refused == 0, "others that send little are inline all the time"


def test_clients_that_flood_an_agent_leave_room_for_others() -> None:
    check_shares()


def test_the_planted_bug_that_all_share_one_rate_is_caught(patch: Patch) -> None:
    patch.replace(InlinePolicy, "_use", lambda self, client, size_bytes, now: True)
    with pytest.raises(AssertionError):
        check_shares()


def check_promises() -> None:
    policy = policy_with(limits=InlineLimits(file_bytes=10_000, bytes_s=10_000, held_bytes=100_000, move_s=30))
    sent = 0
    while not policy.is_refused(100, 100.0, "flood"):
        sent += 100
    assert 0 < sent < LIMITS.bytes_s, "one file does not use more than there is"
    assert not policy.is_refused(100, 100.0, "other")
    assert policy.take(sent + 100, 100.0) != NO_SLOT
    assert not policy.is_refused(100, 100.0, "other"), "the flood left room"


def test_what_is_promised_to_an_open_file_is_not_promised_again() -> None:
    check_promises()


def test_the_planted_bug_that_an_open_file_is_not_counted_is_caught(patch: Patch) -> None:
    correct = InlinePolicy._use

    def use(self: InlinePolicy, client: str, size_bytes: int, now: float) -> bool:
        self._promised = 0
        return correct(self, client, size_bytes, now)

    patch.replace(InlinePolicy, "_use", use)
    with pytest.raises(AssertionError):
        check_promises()
