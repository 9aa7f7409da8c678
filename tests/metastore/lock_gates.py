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


@dataclass
class Operation:
    """`real` runs it on Postgres, `modelled` on a model; both return what its caller learns.

    `announced`: what it does to the model later; others may come in between.
    """

    name: str
    real: Callable[[], Coroutine[Any, Any, Any]]
    modelled: Callable[[ModelWithFiles], Coroutine[Any, Any, Any]]
    announced: Callable[[ModelWithFiles], None] | None = None


async def run_gated(url: str, rng: random.Random, shards: int, busy: int, operations: list[Operation]) -> list[Any]:
    """Each operation's result or error. `busy`: the shard with a feed row that may be held."""
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(session(url))
        gate = await stack.enter_async_context(session(url))
        openings = [f"SELECT pg_advisory_unlock({COMMIT_LOCK_CLASS}, {shard})" for shard in range(shards)]
        for shard in range(shards):
            await gate.execute(f"SELECT pg_advisory_lock({COMMIT_LOCK_CLASS}, {shard})".encode())
        if rng.random() < 0.7:  # another feed row waits too, in the middle of a commit
            row_gate = await stack.enter_async_context(session(url))
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
