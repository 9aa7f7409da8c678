"""Check which connection is closed when too many wait for their clients: of the address with the most, the oldest."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.agent.listener import admission as module
from headrace.agent.listener.admission import Newcomer, Newcomers
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X7")


class Room:
    """Newcomers, and apart from them a list in the order in which each came under its address."""

    def __init__(self, most: int, seconds: float = 60.0, fresh_seconds: float = 0.0) -> None:
        self.most = most
        self.newcomers = Newcomers(lambda: self.most, seconds, fresh_seconds=fresh_seconds)
        self.inside: list[Newcomer] = []
        self.closed: list[tuple[str, float, bool]] = []

    def enter(self, address: str, now: float) -> Newcomer:
        made: list[Newcomer] = []

        def close(for_others: bool) -> None:
            self.closed.append((address, now, for_others))
            self.inside = [each for each in self.inside if each is not made[0]] if made else self.inside

        made.append(self.newcomers.enter(address, now, close))
        if (address, now, True) not in self.closed:
            self.inside.append(made[0])
        return made[0]


def test_the_oldest_of_the_address_with_the_most_makes_room() -> None:
    room = Room(4)
    for number, address in enumerate(("a", "b", "b", "b", "c")):
        room.enter(address, float(number))
    assert room.closed == [("b", 1.0, True)]
    room.enter("a", 5.0)
    assert len(room.newcomers) == 4


def test_an_address_that_has_all_makes_room_itself() -> None:
    room = Room(2)
    for number in range(4):
        room.enter("a", float(number))
    assert room.closed == [("a", 0.0, True), ("a", 1.0, True)]


def test_a_handshake_in_progress_is_not_closed_for_a_newer_one() -> None:
    """Thousands of clients of one address, after an agent's start: some get through."""
    room = Room(3, fresh_seconds=1.0)
    for number in range(10):
        room.enter("a", number / 100)
    assert [at for _, at, _ in room.closed] == [number / 100 for number in range(3, 10)]
    room.enter("a", 1.5)
    assert room.closed[-1] == ("a", 0.0, True)


def test_the_time_of_each_ends() -> None:
    room = Room(10, seconds=5.0)
    first = room.enter("a", 0.0)
    room.enter("b", 1.0)
    known = room.enter("c", 1.0)
    known.leave()
    room.newcomers.expire(4.9)
    assert room.closed == []
    room.newcomers.expire(5.0)
    assert room.closed == [("a", 0.0, False)]
    first.leave()
    room.newcomers.expire(60.0)
    assert [address for address, _, _ in room.closed] == ["a", "b"], "who left is not closed"


def test_the_address_that_a_balancer_names_counts() -> None:
    room = Room(4)
    for number in range(3):
        room.enter("balancer", float(number)).move("attacker")
    room.enter("balancer", 3.0).move("client")
    room.enter("balancer", 4.0)
    assert room.closed == [("balancer", 0.0, True)], "the connection that came first, now the attacker's"
    assert len(room.newcomers) == 4


def _many(seed: int) -> None:
    rng = random.Random(seed)
    room, addresses = Room(rng.randrange(1, 12)), "abcdefg"[: rng.randrange(1, 8)]
    for step in range(400):
        now, before = float(step), list(room.inside)
        if before and rng.random() < 0.3:
            left = rng.choice(before)
            left.leave()
            room.inside.remove(left)
        elif before and rng.random() < 0.2:
            moved = rng.choice(before)
            moved.move(rng.choice(addresses))
            room.inside.remove(moved)
            room.inside.append(moved)
        else:
            closed = len(room.closed)
            room.enter(rng.choice(addresses), now)
            counts = Counter(each.address for each in {*before, *room.inside})
            for each in set(before) - set(room.inside):
                assert counts[each.address] == max(counts.values())
                assert each is next(other for other in before if other.address == each.address)
            assert len(room.closed) - closed == max(0, len(before) + 1 - room.most)
        assert len(room.newcomers) == len(room.inside) <= room.most


def _all_seeds() -> None:
    for seed in range(20):
        _many(seed)


def test_any_sequence_keeps_the_rule() -> None:
    _all_seeds()


def test_the_planted_bug_closes_the_oldest_of_all(patch: Patch) -> None:
    """As the HTTP listener did: one address with many new connections closes those of others."""

    def oldest(self: Newcomers, now: float) -> bool:
        self._end(next(iter(self._all)), for_others=True)
        return True

    patch.replace(module.Newcomers, "displace", oldest)
    with pytest.raises(AssertionError):
        _all_seeds()
