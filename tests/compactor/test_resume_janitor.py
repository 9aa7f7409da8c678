"""Deletion is not resumed over the only copy of acknowledged records unless the operator confirms it."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.compactor.permit import read_mark
from headrace.compactor.put_back import PlannedBatch, PutBack, begin_put_back, end_put_back
from headrace.metastore.life.bucket import LifeRecord, newest_life, record_life
from headrace.metastore.life.forgotten import write_forgotten
from headrace.metastore.life.keeper import LifeKeeper
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.objects.directory import DirectoryStore
from tests.compactor.test_lost import _lose_newest
from tests.compactor.world import CompactionWorld
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("W1", "X4")


class Restored:
    """A bucket, and a new life of its metastore, which lost a commit."""

    def __init__(self, world: CompactionWorld, folder: Path, lost: uuid.UUID) -> None:
        self.world, self.lost = world, lost
        self.bucket = DirectoryStore(folder, SystemClock())
        self._flags = [f"--metastore-url={world.url}", f"--bucket={folder.as_uri()}"]

    async def audit(self, *words: str) -> int:
        return await asyncio.to_thread(main, ["audit", *words, *self._flags])

    async def may_delete(self) -> bool:
        """Return whether a janitor may: the mark has the metastore's incarnation id."""
        mark = await read_mark(self.bucket)
        return (
            mark is not None and mark.incarnation_id == (await self.world.postgres.files.janitor_state()).incarnation_id
        )


@pytest.fixture
async def restored(world: CompactionWorld, tmp_path: Path) -> Restored:
    (a,) = await world.topic("t", 1)
    for records in (3, 4):
        await world.commit((a, plain_batch(records)))
    extents = await world.extents(a)
    (lost,) = await _lose_newest(world, 1)
    made = Restored(world, tmp_path / "bucket", uuid.UUID(lost))
    await write_cluster_id(made.bucket, world.postgres.cluster_id)
    async for info in world.store.list_objects():
        await made.bucket.put(info.key, await world.store.get(info.key))
    await LifeKeeper(world.postgres.life, made.bucket, SystemClock(), random.Random(1)).begin_anew("restored")
    await write_forgotten(made.bucket, uuid.UUID(int=1), [extents[-1]])
    return made


async def test_deletion_is_resumed_over_lost_records_only_if_it_is_confirmed(
    restored: Restored, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await restored.audit("--resume-janitor") == 1
    told = capsys.readouterr().err
    assert "delete the only copy of acknowledged records?" in told
    assert "lost the commits of 1 files" in told
    assert "`headrace audit --lost` lists 4 records" in told
    assert not await restored.may_delete()
    assert await restored.audit("--resume-janitor", "--yes") == 0
    assert await restored.may_delete()


async def test_deletion_is_resumed_without_a_question_once_the_records_are_put_back(restored: Restored) -> None:
    plan = PutBack(1, 7, 0, [PlannedBatch(restored.lost, "t", 0, 0, 1, 4)])
    await begin_put_back(restored.bucket, plan)
    assert await restored.audit("--resume-janitor") == 1, "the command was interrupted: its files are still needed"
    assert not await restored.may_delete()
    await end_put_back(restored.bucket, plan)
    assert await restored.audit("--resume-janitor") == 0
    assert await restored.may_delete()


async def supersede(bucket: DirectoryStore) -> None:
    """A standby was promoted, and an agent has begun its life."""
    newest = await newest_life(bucket, None)
    assert newest is not None
    fields = {name: getattr(newest, name) for name in newest.__struct_fields__}
    later = {
        "life": newest.life + 1,
        "timeline": newest.timeline + 1,
        "incarnation_id": uuid.UUID(int=2),
        "reason": "promoted",
    }
    assert await record_life(bucket, LifeRecord(**fields | later))


@pytest.mark.parametrize(
    "words",
    ["audit --lost", "audit --resume-janitor", "storage rotate-zone-secret"],
)
async def test_a_command_refuses_an_old_primary(
    restored: Restored, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has every row, so nothing would be missing; and nothing that is changed there counts."""
    await supersede(restored.bucket)
    config = tmp_path / "headrace.properties"
    config.write_text(f"metastore.url={restored.world.url}\nbucket={(tmp_path / 'bucket').as_uri()}\n")
    assert await asyncio.to_thread(main, [*words.split(), "-c", str(config)]) == 1
    assert "another server is the metastore by now" in capsys.readouterr().err
    assert not await restored.may_delete()
