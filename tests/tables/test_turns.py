"""A table with a long round does not hold up the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.tables.follower import SHARE_SECONDS, TableTurns
from tests.manual_clock import ManualClock


class Rounds:
    """Rounds of tables; those of `slow` end once their event is set."""

    def __init__(self, *slow: str) -> None:
        self.clock = ManualClock()
        self.turns = TableTurns(self.clock)
        self.ends = {name: asyncio.Event() for name in slow}
        self.begun, self.done = Counter[str](), Counter[str]()

    async def round(self, name: str) -> bool:
        self.begun[name] += 1
        if name in self.ends:
            await self.ends[name].wait()
        self.done[name] += 1
        return True

    async def turn(self, *names: str) -> list[str]:
        """One turn; the tables that ended their round within the share."""
        return [n for n in names if self.turns.may_begin(n) and await self.turns.take(n, partial(self.round, n))]


async def test_a_long_round_runs_next_to_the_others() -> None:
    rounds = Rounds("slow")
    assert await rounds.clock.run(rounds.turn("slow", "a", "b")) == ["a", "b"]
    assert rounds.turns.long().keys() == {"slow"}
    assert await rounds.clock.run(rounds.turn("slow", "a", "b")) == ["a", "b"]
    assert rounds.begun == {"slow": 1, "a": 2, "b": 2}, "a table has one round at a time"
    rounds.clock.jump(30)
    rounds.ends["slow"].set()
    await rounds.clock.settle()
    assert (rounds.done["slow"], rounds.turns.long()) == (1, {})
    assert not rounds.turns.may_begin("slow"), "it rests"
    rounds.clock.jump(30 + 2 * SHARE_SECONDS)
    assert await rounds.clock.run(rounds.turn("slow", "a")) == ["slow", "a"]


async def test_a_second_long_round_is_waited_for_until_one_of_them_ends() -> None:
    rounds = Rounds("x", "y")
    turn = asyncio.ensure_future(rounds.turn("x", "y", "a"))
    await rounds.clock.advance(5 * SHARE_SECONDS)
    assert (rounds.begun["y"], rounds.begun["a"]) == (1, 0)
    rounds.ends["x"].set()
    assert await rounds.clock.run(turn) == ["a"]
    await rounds.turns.close()
    assert rounds.done == {"x": 1, "a": 1}


async def test_an_error_behind_the_share_is_raised_in_the_next_turn() -> None:
    rounds = Rounds("slow")

    async def fails() -> bool:
        await rounds.ends["slow"].wait()
        raise RuntimeError("a bug")

    assert not await rounds.clock.run(rounds.turns.take("slow", fails))
    rounds.ends["slow"].set()
    await rounds.clock.settle()
    with pytest.raises(RuntimeError, match="a bug"):
        await rounds.turn("a")
