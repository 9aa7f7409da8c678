"""Elects one of several agents for each role by rendezvous hashing, and remembers the result: pure.

Place: routing.py has one object for each set of agents: those of a zone for commit shards, all for groups.
Invariant: the agent with the highest score is elected, so the same agents elect the same one in every process and
release; the score is fixed (BLAKE2b). An object always decides for its own agents. It takes over what an earlier object
found: an agent that came is compared with the winner of each role, and only roles of winners that went are elected
again. So with 1,000 agents and 1,024 shards a change costs about one score per shard, not a million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", int, str)

REMEMBERED_MAX = 4_096
"""Roles of an object; all are forgotten when there are more."""
ROLE_CHARACTERS_MAX = 256
"""A role with a longer name is elected each time: clients choose the ids of groups."""


def score(node_id: int, role: str) -> int:
    """Return the agent's preference for the role: 64 bits, the same in every process and release."""
    return int.from_bytes(hashlib.blake2b(f"{node_id}/{role}".encode(), digest_size=8).digest())


class _Elected(NamedTuple):
    """The winner of a role, without the agents that came since."""

    score: int
    node_id: int
    came: tuple[int, ...] = ()


class Elections(Generic[K]):
    """The winners among some agents."""

    def __init__(self, node_ids: Iterable[int], name: Callable[[K], str], before: Elections[K] | None = None) -> None:
        """`name`: of a role. `before`: the elections among other agents, of which winners are taken over."""
        self.node_ids = frozenset(node_ids)
        self._name: Callable[[K], str] = name
        self._elected: dict[K, _Elected] = {} if before is None else before._taken_over(self.node_ids)

    def winner(self, role: K) -> int | None:
        """Return the node id; None without agents."""
        elected = self._elected.get(role)
        if elected is None or elected.came:
            elected = self._elect(role, elected)
        return elected.node_id if self.node_ids else None

    def scores_needed(self, role: K) -> int:
        """Return how many scores `winner` would compute; 0 if it remembers the winner."""
        elected = self._elected.get(role)
        return len(self.node_ids) if elected is None else len(elected.came)

    def _elect(self, role: K, known: _Elected | None) -> _Elected:
        name = self._name(role)
        best, among = ((-1, -1), self.node_ids) if known is None else (known[:2], known.came)
        elected = _Elected(*max(best, *((score(node_id, name), node_id) for node_id in among), (-1, -1)))
        if len(name) <= ROLE_CHARACTERS_MAX:
            if role not in self._elected and len(self._elected) >= REMEMBERED_MAX:
                self._elected.clear()
            self._elected[role] = elected
        return elected

    def _taken_over(self, node_ids: frozenset[int]) -> dict[K, _Elected]:
        """Return the winners that are among `node_ids`, each with the agents that it was not compared with yet."""
        came = tuple(node_ids - self.node_ids)
        compared: dict[tuple[int, ...], tuple[int, ...]] = {}
        taken = {}
        for role, (score_of, winner, waiting) in self._elected.items():
            if winner not in node_ids:
                continue
            if waiting not in compared:
                compared[waiting] = tuple(node_id for node_id in waiting if node_id in node_ids) + came
            if len(compared[waiting]) < len(node_ids):
                taken[role] = _Elected(score_of, winner, compared[waiting])
        return taken
