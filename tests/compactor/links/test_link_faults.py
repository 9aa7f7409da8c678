"""Lost and late answers, and kills, at each step of a link's job: each record is copied once all the same."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.compactor.links import copy_job
from headrace.metastore.api.links import LinkedProgress
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.compactor.links.link_world import LinkWorld
from tests.compactor.links.source_log import SourceLog
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X14")

Call = Callable[..., Awaitable[Any]]
_workers = itertools.count()
"""Each job is another one: a worker that was killed still has its lease."""


class Faults:
    """What happens to calls: `plan` has an entry for each of the next ones, then all is well."""

    def __init__(self, plan: list[str]) -> None:
        self.plan = plan

    def around(self, call: Call) -> Call:
        """The call, with faults."""

        async def faulty(*args: Any, **kwargs: Any) -> Any:
            fault = self.plan.pop(0) if self.plan else ""
            if fault == "lost":
                raise UnavailableError("the request was lost")
            if fault == "killed before":
                raise Killed
            result = await call(*args, **kwargs)
            if fault == "unknown":
                raise OutcomeUnknownError("the answer was lost")
            if fault == "killed after":
                raise Killed
            return result

        return faulty


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, raw: Session, patch: Patch) -> LinkWorld:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    patch.replace(copy_job, "RUN_SECONDS", 8.0)
    found = LinkWorld(metastore)
    await found.create()
    return found


async def _copy(world: LinkWorld, faults: Faults, is_whole: Callable[[list[LinkedProgress]], bool]) -> None:
    """Run jobs until one ends without a fault and all is copied."""
    is_clean = False
    while not is_clean or not is_whole(await world.progress()):
        is_clean = not faults.plan
        try:
            await world.run(worker=f"-{next(_workers)}")
        except (Killed, UnavailableError, OutcomeUnknownError):
            is_clean = False
            world.forget()


@pytest.mark.parametrize("seed", range(2))
async def test_faults_at_any_step_change_nothing(world: LinkWorld, seed: int, patch: Patch) -> None:
    rng = random.Random(seed)
    logs = [SourceLog(), SourceLog()]
    await world.add("orders", *logs)
    kinds = ["", "lost", "unknown", "killed before", "killed after"]
    faults = Faults([])
    metastore = world.metastore
    for owner, name in (
        (world.store, "put"),
        (metastore.links, "append_linked"),
        (metastore.segments, "start_segments"),
        (metastore.links, "report_partitions"),
    ):
        patch.wrap(owner, name, faults.around)

    def is_whole(progress: list[LinkedProgress]) -> bool:
        return all(each.high_watermark == logs[each.partition_index].end for each in progress)

    for _ in range(3):
        for log in logs:
            log.append(rng.randint(1, 4), 3)
            log.append(rng.randint(1, 4), 9, transactional=True)
            log.finish(9, commit=rng.random() < 0.5)
        faults.plan = [rng.choice(kinds) for _ in range(rng.randint(1, 6))]
        await asyncio.wait_for(_copy(world, faults, is_whole), 600)
        for each in await world.progress():
            log = logs[each.partition_index]
            assert each.high_watermark == log.end
            assert await world.records(each.partition_key) == log.visible
