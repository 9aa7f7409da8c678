"""Answers wait here until what they tell is stored.

Place: under membership.py; its effects are what held_groups.py performs.
Invariant: nothing is told that is not durable: an answer leaves once the state that it was made from is
stored. One save is under way at a time and holds all that changed before it began, so that a thousand
members who join at once cost a few saves, not a thousand. A token is answered once.
If the process dies here, nobody has heard of what was not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.values import GroupEffect, Reply, Save, SavedState, Token


class _Waiting(NamedTuple):
    revision: int
    token: Token
    answer: object
    refused: Callable[[ErrorCode], object]


class Outbox:
    """One group's answers and saves."""

    def __init__(self, state: Callable[[], SavedState]) -> None:
        """`state`: what is to be stored now."""
        self._state = state
        self._revision = 0
        self._stored = 0
        self._saving = False
        self._waiting: deque[_Waiting] = deque()
        self._effects: list[GroupEffect] = []

    def changed(self) -> None:
        """The group is no longer as it is stored."""
        self._revision += 1

    @property
    def has_news(self) -> bool:
        """Whether there is something that is not stored."""
        return self._revision > self._stored

    def answer(self, token: Token, answer: object, refused: Callable[[ErrorCode], object]) -> None:
        """`refused` makes the answer for when this one cannot be given."""
        self._waiting.append(_Waiting(self._revision, token, answer, refused))

    def stored(self, revision: int) -> None:
        """A save was stored."""
        self._stored = revision
        self._saving = False

    def refuse_all(self, code: ErrorCode) -> None:
        """Whoever waits gets `code`."""
        while self._waiting:
            waiting = self._waiting.popleft()
            self._effects.append(Reply(waiting.token, waiting.refused(code)))

    def give_up(self) -> None:
        """Store nothing any more: another holder, or another group, goes on from what is stored."""
        self._revision = self._stored

    def emit(self, effect: GroupEffect) -> None:
        """Something else that is to be done, in order."""
        self._effects.append(effect)

    def drain(self) -> list[GroupEffect]:
        """What is to be done now."""
        while self._waiting and self._waiting[0].revision <= self._stored:
            waiting = self._waiting.popleft()
            self._effects.append(Reply(waiting.token, waiting.answer))
        if self.has_news and not self._saving:
            self._saving = True
            self._effects.append(Save(self._revision, self._state()))
        effects, self._effects = self._effects, []
        return effects
