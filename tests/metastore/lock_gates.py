"""Gates at the metastore's lock points: operations queue up behind them and are let through one by one.

Place: under tests/metastore/interleavings.py. The gates hold every commit shard's lock, and sometimes a shard's
feed row; between two openings each operation runs until it is done or waits again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from headrace.storage.errors import HeadraceError
from tests.metastore.commit_scenes import COMMIT_LOCK_CLASS
from tests.metastore.sessions import Session, rows, session
from tests.model.file_model import ModelWithFiles

WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
)
SETTLED_WITHIN_MS = 300_000
WATCHER, GATES, ASIDE = 0, (1, 2), 9
"""Numbers of sessions: who looks for waiting ones, who holds locks, and who asks between two rounds."""


@dataclass
class Operation:
    """`real` runs it on Postgres, `modelled` on a model; both return what its caller learns.

    `announced`: what it does to the model later; others may come in between.
    """

    name: str
    real: Callable[[], Coroutine[Any, Any, Any]]
    modelled: Callable[[ModelWithFiles], Coroutine[Any, Any, Any]]
    announced: Callable[[ModelWithFiles], None] | None = None


class Sessions:
    """Sessions of a history, by number, in addition to those of its operations. Each is opened once: it costs much."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self._opened: dict[int, Session] = {}

    async def __aenter__(self) -> Sessions:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def get(self, number: int) -> Session:
        """The session with this number, in autocommit."""
        if number not in self._opened:
            self._opened[number] = await self._stack.enter_async_context(session(self._url))
        return self._opened[number]


async def run_gated(
    sessions: Sessions, rng: random.Random, shards: int, busy: int, operations: list[Operation]
) -> list[Any]:
    """Each operation's result or error. `busy`: the shard with a feed row that may be held."""
    watcher, gate, row_gate = [await sessions.get(number) for number in (WATCHER, *GATES)]
    openings = [f"SELECT pg_advisory_unlock({COMMIT_LOCK_CLASS}, {shard})" for shard in range(shards)]
    for shard in range(shards):
        await gate.execute(f"SELECT pg_advisory_lock({COMMIT_LOCK_CLASS}, {shard})".encode())
    if rng.random() < 0.7:  # another feed row waits too, in the middle of a commit
        await row_gate.execute("BEGIN")
        await rows(row_gate, "SELECT 1 FROM commit_shards WHERE shard = %s FOR UPDATE", busy)
        openings.append("COMMIT")
    rng.shuffle(openings)
    running: dict[int, asyncio.Task[Any]] = {}
    for index in rng.sample(range(len(operations)), len(operations)):
        running[index] = asyncio.create_task(operations[index].real())
        await settled(watcher, list(running.values()))
    for opening in openings:
        await (row_gate if opening == "COMMIT" else gate).execute(opening.encode())
        await settled(watcher, list(running.values()))
    await asyncio.wait(running.values())
    return [_outcome(running[index]) for index in range(len(operations))]


async def settled(watcher: Session, tasks: list[asyncio.Task[Any]]) -> None:
    """Return when each task is done or waits for a lock."""
    for _ in range(SETTLED_WITHIN_MS):
        if (await rows(watcher, WAITING))[0][0] >= sum(not task.done() for task in tasks):
            return
        await asyncio.sleep(0.001)
    raise TimeoutError(f"neither done nor waiting for a lock: {tasks}")


def _outcome(task: asyncio.Task[Any]) -> Any:
    error = task.exception()
    if error is not None and not isinstance(error, HeadraceError | AssertionError):
        raise error
    return error or task.result()
