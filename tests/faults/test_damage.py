"""A damaged batch in a real bucket on a real Postgres: what readers, doctor and commands see until it is mended."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace.cli.doctor.findings import Level
from headrace.cli.doctor.postgres import examine
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.file_id import object_key
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.records.header import read_header
from tests.agent.fetch.fetch_world import split_sent
from tests.compactor.world import CompactionWorld
from tests.metastore.segment_keys import with_keys
from tests.storage.batches import plain_batch


class DirectoryWorld(CompactionWorld):
    """A CompactionWorld with its bucket in a folder, and the commands on both."""

    def __init__(self, metastore: PostgresMetastore, url: str, folder: Path) -> None:
        super().__init__(metastore, url)
        self.folder = folder
        self.store = open_store(  # type: ignore[assignment]
            f"file://{folder}", StoreOptions(), clock=SystemClock(), rng=random.Random(1)
        )
        self.service = self.new_service()

    async def command(self, capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
        """Run `headrace` with these words, on this metastore and bucket."""
        line = [*words, "--metastore-url", self.url, "--bucket", f"file://{self.folder}"]
        assert await asyncio.to_thread(main, line) == status
        return capsys.readouterr().out

    async def damage(self, key: int, offset: int) -> Path:
        """Flip a byte of the batch with this offset on the disk; return its file."""
        extent = next(each for each in await self.extents(key) if each.base_offset <= offset <= each.last_offset)
        path = self.folder / object_key(extent.file_id)
        body = bytearray(path.read_bytes())
        position, at = extent.position, extent.base_offset
        while at + read_header(body, position).last_offset_delta < offset:
            at += read_header(body, position).last_offset_delta + 1
            position += read_header(body, position).size
        body[position + 80] ^= 1
        path.write_bytes(bytes(body))
        return path

    async def codes(self, key: int) -> list[int]:
        """Return what a cold agent answers at each offset: 0 if it sends a batch with this offset."""
        found = []
        service = self.new_service()
        await service.start()
        for offset in range(9):
            result = await self.request_fetch({key: offset}, service=service)
            if not result.code(key):
                header = read_header(split_sent(result.records(key))[0])
                assert header.base_offset <= offset <= header.base_offset + header.last_offset_delta
            found.append(int(result.code(key)))
        notes = service._damage_notes
        if notes is not None and notes._telling is not None:
            await notes._telling
        await service.close()
        return found


DAMAGED = int(ErrorCode.corrupt_message)


@pytest.mark.requirement("W5")
async def test_the_life_of_a_damaged_batch(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_keys(metastore_url)
    world = DirectoryWorld(metastore, metastore_url, tmp_path / "bucket")
    await write_cluster_id(world.store, metastore.cluster_id)
    await world.begin()
    (key,) = await world.topic("orders", 1)
    for number in range(3):
        await world.commit((key, plain_batch(2 + number, b"%d" % number * 60)))
    await world.compact(1)
    records = await world.records(key)

    # Readers get all but the damaged offsets, and say what they met.
    await world.damage(key, 3)
    assert await world.codes(key) == [0, 0, DAMAGED, DAMAGED, DAMAGED, 0, 0, 0, 0]
    settings = Settings(metastore_url=metastore_url, bucket=f"file://{tmp_path / 'bucket'}")
    (bad,) = [one for one in await examine(settings, SystemClock()) if one.check == "damage"]
    assert bad.level is Level.BAD
    assert bad.found.startswith("orders:0 offsets=2-4 cannot be read")
    assert "headrace damage repair orders --partition 0 --offset 2" in bad.to_do
    listed = json.loads(await world.command(capsys, "damage", "list", "--json", status=1))
    assert [(one["topic"], one["first_offset"], one["last_offset"]) for one in listed] == [("orders", 2, 4)]
    report = await world.command(capsys, "audit", "--deep", status=1)
    assert "damaged: orders:0 offsets=2-4" in report
    assert "headrace damage repair orders --partition 0 --offset 2" in report

    # Its sources are still there.
    dry = await world.command(capsys, "damage", "repair", "orders", "--dry-run", status=1)
    assert "found in file" in dry
    await world.command(capsys, "damage", "repair", "orders", "--yes", status=0)
    assert await world.records(key) == records
    assert "violations                 0" in await world.command(capsys, "audit", "--deep", status=0)
    assert json.loads(await world.command(capsys, "damage", "list", "--json", status=0)) == []
    assert "sound" in await world.command(capsys, "damage", "skip", "orders", "--offset", "3", "--yes", status=0)

    # The copy is damaged, and nothing sound is left.
    await world.damage(key, 6)
    for file_id, row in (await world.file_rows()).items():
        if row["dead_at"]:
            (tmp_path / "bucket" / object_key(file_id)).unlink()
    assert await world.codes(key) == [0, 0, 0, 0, 0, DAMAGED, DAMAGED, DAMAGED, DAMAGED]
    answer = json.loads(
        await world.command(capsys, "damage", "repair", "orders", "--offset", "5", "--json", "--yes", status=1)
    )
    assert [(one["first_offset"], one["records"], one["found_in"]) for one in answer[0]["damaged"]] == [(5, 4, None)]
    await world.command(capsys, "damage", "skip", "orders", "--offset", "5", "--yes", status=0)
    assert await world.records(key) == records[:5]
    (entry,) = [json.loads(path.read_bytes()) for path in (tmp_path / "bucket/metastore/skipped-damage").iterdir()]
    assert (entry["outcome"], entry["ranges"][0]["first_offset"], entry["ranges"][0]["records"]) == ("done", 5, 4)
    assert "violations                 0" in await world.command(capsys, "audit", "--deep", status=0)
    await world.check_accounts()
    await world.service.close()
    await world.store.close()
