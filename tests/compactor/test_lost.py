"""After rows were lost, the audit lists what stored files hold without a row: by partition, at most what was lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from pathlib import Path

import pytest

from headrace.cli.lost import left_out
from headrace.cli.main import main
from headrace.compactor.lost import LATE_MS, SETTLE_MS, find_lost
from headrace.compactor.put_back import plan_put_back
from headrace.metastore.life.forgotten import OffsetRange, write_forgotten
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.log.snapshot import load_image
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import ClientConfig
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import born_ms, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.segment.reader import verify_segment
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import session
from tests.storage.altered_reads import reads_of
from tests.storage.batches import plain_batch


async def _lose_newest(world: CompactionWorld, files: int) -> list[str]:
    """Forget the last files' rows, as a promotion that lost their commits does; their ids."""
    ids = (await world.live_files())[-files:]
    async with session(world.url) as raw:
        await raw.execute("DELETE FROM extents WHERE file_id = ANY (%s)", (ids,))
        await raw.execute("DELETE FROM segment_files WHERE file_id = ANY (%s)", (ids,))
    return [str(file_id) for file_id in ids]


async def _certain(world: CompactionWorld, *keys: int) -> dict[uuid.UUID, set[OffsetRange]]:
    """Lose the newest file; what agents recorded of it before."""
    extents = [extent for key in keys for extent in await world.extents(key)]
    (lost,) = await _lose_newest(world, 1)
    ranges = {OffsetRange(e.partition_key, e.base_offset, e.last_offset) for e in extents if str(e.file_id) == lost}
    return {uuid.UUID(lost): ranges}


@pytest.mark.requirement("X4")
async def test_what_no_row_names_is_listed_by_partition(world: CompactionWorld) -> None:
    a, b = await world.topic("t", 2)
    for _ in range(3):
        await world.commit((a, plain_batch(3)), (a, plain_batch(1)), (b, plain_batch(2)))
    nothing = await find_lost(world.postgres, reads_of(world.store), _now_ms(), _now_ms(), lambda *_: None)
    assert (nothing.file_ids, nothing.partitions) == ([], {})
    known = [extent for key in (a, b) for extent in await world.extents(key)]
    known.sort(key=lambda extent: (extent.file_id, extent.partition_key))
    lost = await _lose_newest(world, 2)
    found = await find_lost(world.postgres, reads_of(world.store), _now_ms(), _now_ms(), lambda *_: None)
    assert {str(file_id) for file_id in found.file_ids} == set(lost)
    assert [(p.partition_index, p.files, p.batches, p.records) for p in found.in_order()] == [
        (0, 2, 4, 8),
        (1, 2, 2, 4),
    ]
    assert [(p.certain_records, p.offsets) for p in found.in_order()] == [(0, []), (0, [])]
    await write_forgotten(world.store, uuid.UUID(int=1), known[-2:])  # of the last file
    certain = await find_lost(world.postgres, reads_of(world.store), _now_ms(), _now_ms(), lambda *_: None)
    assert [(p.certain_records, p.offsets) for p in certain.in_order()] == [(4, [(8, 11)]), (2, [(4, 5)])]
    assert certain.certain == 1
    (damaged, kept) = found.file_ids
    await world.store.put(object_key(damaged), b"no segment file, and long enough to have a trailer" * 10)
    again = await find_lost(world.postgres, reads_of(world.store), _now_ms(), _now_ms(), lambda *_: None)
    assert ([file_id for file_id, _ in again.unreadable], again.file_ids) == ([damaged], [kept])


async def test_an_old_primary_s_last_files_are_listed_and_those_under_way_are_not(world: CompactionWorld) -> None:
    """A life begins, and agents that do not know yet continue for a moment."""
    (a,) = await world.topic("t", 1)
    await world.commit((a, plain_batch(3)))
    (extent,) = await world.extents(a)
    (lost,) = await _lose_newest(world, 1)
    born = born_ms(uuid.UUID(lost))

    async def found(begun_ms: int, now_ms: int) -> list[str]:
        report = await find_lost(world.postgres, reads_of(world.store), begun_ms, now_ms, lambda *_: None)
        return [str(file_id) for file_id in report.file_ids]

    assert await found(born + 1, born + 2) == [lost], "older than the life"
    assert await found(born - 1_000, born + SETTLE_MS) == [], "it may be on its way to its commit in the new life"
    assert await found(born - 1_000, born + SETTLE_MS + 1) == [lost]
    assert await found(born - LATE_MS, born + 3_600_000) == [], "no old primary goes on for so long"
    await write_forgotten(world.store, uuid.UUID(int=1), [extent])
    assert await found(born - 1_000, born + 1) == [lost], "an agent knows that it was committed"


async def test_a_file_with_a_batch_that_was_never_appended_is_not_put_back(world: CompactionWorld) -> None:
    """Its retried batch is in the log already: what is lost is only the batch next to it, and nothing says which."""
    a, b = await world.topic("t", 2)
    idempotent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    await world.commit((a, plain_batch(3, **idempotent)))
    await world.commit((a, plain_batch(3, **idempotent)), (a, plain_batch(2)), (b, plain_batch(4)))
    fed = await _certain(world, a, b)
    topics = (await load_image(world.postgres.cluster)).topics_by_id
    planned = await plan_put_back(world.postgres.index, reads_of(world.store), fed, topics)
    assert [(batch.partition_index, batch.records) for batch in planned.batches] == [(1, 4)]
    assert (planned.dropped, planned.transactional) == ({("t", 0): 5}, {})


async def test_records_of_transactions_are_left_out_for_another_reason(world: CompactionWorld) -> None:
    a, b = await world.topic("t", 2)
    transactional = plain_batch(3, producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    await world.commit((a, transactional), (a, plain_batch(2)), (b, plain_batch(4)))
    (lost,) = await _lose_newest(world, 1)
    fed = {uuid.UUID(lost): {OffsetRange(a, 0, 4), OffsetRange(b, 0, 3)}}  # as after a commit in a transaction
    topics = (await load_image(world.postgres.cluster)).topics_by_id
    planned = await plan_put_back(world.postgres.index, reads_of(world.store), fed, topics)
    assert [(batch.partition_index, batch.records) for batch in planned.batches] == [(0, 2), (1, 4)]
    assert list(left_out(planned)) == [
        "left out, because this life of the metastore has aborted their transactions: t partition=0 records=3"
    ]


async def test_lost_records_are_put_back_by_a_client_that_logs_in(
    world: CompactionWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with the other tools: a file with the admin client's properties."""
    bucket = DirectoryStore(tmp_path / "bucket", SystemClock())
    await write_cluster_id(bucket, world.postgres.cluster_id)
    await LifeKeeper(world.postgres.life, bucket, SystemClock(), random.Random(1)).begin_anew("restored")
    properties = tmp_path / "admin.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ops\nsasl.password=open\n"
    )
    used: list[ClientConfig] = []

    def of(config: ClientConfig) -> None:
        used.append(config)
        raise UnavailableError("seen")

    monkeypatch.setattr(KafkaCluster, "of", of)
    words = ["audit", "--lost", f"--metastore-url={world.url}", f"--bucket=file://{tmp_path}/bucket"]
    words += ["--command-config", str(properties)]
    assert await _run(*words) == 1
    assert "--command-config needs --put-back" in capsys.readouterr().err
    assert await _run(*words, "--put-back", "agent:9092") == 1
    assert [config.login.uses_sasl for config in used] == [True]


async def test_the_command_lists_and_exports_it(
    world: CompactionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = DirectoryStore(tmp_path / "bucket", SystemClock())
    await write_cluster_id(bucket, world.postgres.cluster_id)
    (a,) = await world.topic("t", 1)
    await world.commit((a, plain_batch(3)))
    await world.commit((a, plain_batch(4)))
    lost = await _lose_newest(world, 1)
    async for info in world.store.list_objects():
        await bucket.put(info.key, await world.store.get(info.key))
    words = ["audit", "--lost", f"--metastore-url={world.url}", f"--bucket=file://{tmp_path}/bucket"]
    assert await _run(*words) == 0
    assert "nothing is lost" in capsys.readouterr().out
    keeper = LifeKeeper(world.postgres.life, bucket, SystemClock(), random.Random(1))
    await keeper.begin_anew("restored")
    assert await _run(*words, f"--export={tmp_path}/lost") == 1
    assert "t partition=0 records=4 batches=1 files=1" in capsys.readouterr().out
    (exported,) = (tmp_path / "lost").iterdir()
    assert exported.name == f"{lost[0]}.segment"
    assert sum(entry.record_count for entry in verify_segment(exported.read_bytes()).partitions) == 4
    assert await _run(*words, "--json") == 1
    assert json.loads(capsys.readouterr().out)["partitions"][0]["records"] == 4


def _now_ms() -> int:
    """Later than every file of a test, by the database's clock too."""
    return time.time_ns() // 1_000_000 + 60_000


async def _run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))
