"""What a group asks for: answers, and the saves that answers wait for.

Place: the one part that groups of all kinds share; held_groups.py performs its effects.
    save      the group as it is to be stored, under a revision that rises
    answer    what a request gets, now or once a revision is stored
Invariant: an answer leaves only once the state that it was made from is stored. A token is answered once.
A classic group names each save and what waits for it (`save`, `answer_after`). Groups of members/ only say that they
changed (`changed`, `answer`): one save is in progress at a time and holds all changes made before it began, so a
thousand members that join at once cost a few saves, not a thousand.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import GroupEffect, Reply, Save, SavedState, Token

Refused = Callable[[ErrorCode], object]
"""Makes the answer for a token when its own answer cannot be given."""


class _Waiting(NamedTuple):
    revision: int
    order: int
    token: Token
    answer: object
    refused: Refused


class Outbox:
    """One group's answers and saves."""

    def __init__(self, state: Callable[[], SavedState] | None = None) -> None:
        """`state`: what to store after `changed`."""
        self._state = state
        self._revision = 0
        self._sent = 0
        """Revision of the last save that was asked for."""
        self._stored = 0
        self._saving = False
        self._waiting: list[_Waiting] = []
        """A heap."""
        self._order = itertools.count()
        self._effects: list[GroupEffect] = []

    # -- saves

    def changed(self) -> None:
        """The group is no longer as it is stored: `drain` asks for a save, once the last one ended."""
        self._revision += 1

    @property
    def has_news(self) -> bool:
        """Whether there is something that is not stored."""
        return self._revision > self._stored

    def save(self, state: SavedState) -> int:
        """Store this state now, also while another save is in progress; returns its revision."""
        self._revision += 1
        self._ask_for(state)
        return self._revision

    def stored(self, revision: int) -> None:
        """A save was stored."""
        self._stored = revision
        self._saving = False

    def refuse(self, revision: int, code: ErrorCode) -> None:
        """A save failed: refuse the answers that waited for it."""
        while self._waiting and self._waiting[0].revision <= revision:
            self._refuse(heapq.heappop(self._waiting), code)

    def give_up(self) -> None:
        """Store nothing any more: another holder, or another group, continues from what is stored."""
        self._revision = self._sent = self._stored

    # -- answers

    def reply(self, token: Token, answer: object) -> None:
        """Answer now."""
        self._effects.append(Reply(token, answer))

    def answer(self, token: Token, answer: object, refused: Refused) -> None:
        """Answer once everything that changed so far is stored."""
        self.answer_after(self._revision, token, answer, refused)

    def answer_after(self, revision: int, token: Token, answer: object, refused: Refused) -> None:
        """Answer once that save is stored."""
        heapq.heappush(self._waiting, _Waiting(revision, next(self._order), token, answer, refused))

    def refuse_all(self, code: ErrorCode) -> None:
        """Refuse every answer that waits."""
        while self._waiting:
            self._refuse(heapq.heappop(self._waiting), code)

    # -- effects

    def emit(self, effect: GroupEffect) -> None:
        """Something else that is to be done, in order."""
        self._effects.append(effect)

    def release(self) -> None:
        """Give the answers that waited for what is stored by now."""
        while self._waiting and self._waiting[0].revision <= self._stored:
            waiting = heapq.heappop(self._waiting)
            self.reply(waiting.token, waiting.answer)

    def drain(self) -> list[GroupEffect]:
        """Return what is to be done now, in order."""
        self.release()
        if self._state is not None and self._revision > self._sent and not self._saving:
            self._saving = True
            self._ask_for(self._state())
        effects, self._effects = self._effects, []
        return effects

    def _ask_for(self, state: SavedState) -> None:
        self._sent = self._revision
        self._effects.append(Save(self._revision, state))

    def _refuse(self, waiting: _Waiting, code: ErrorCode) -> None:
        self.reply(waiting.token, waiting.refused(code))
