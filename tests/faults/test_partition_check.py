"""`headrace partitions check` on real objects: altered, deleted, or refused by a policy, each with its remedy."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from headrace.cli.main import main
from headrace.metastore.api.compaction import DamagedExtent, DamageKind, FoundDamage
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.file_id import object_key
from tests.faults.test_damage import DirectoryWorld
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url
from tests.metastore.segment_keys import with_keys
from tests.storage.batches import plain_batch

__all__ = ["aws_credentials", "moto_url"]


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, tmp_path: Path) -> AsyncIterator[DirectoryWorld]:
    with_keys(metastore_url)
    made = DirectoryWorld(metastore, metastore_url, tmp_path / "bucket")
    await write_cluster_id(made.store, metastore.cluster_id)
    await made.begin()
    yield made
    await made.service.close()
    await made.store.close()


async def fill(world: DirectoryWorld, *, level: int) -> int:
    """A partition with nine offsets in three batches, in three files or, merged up to a level, in one."""
    (key,) = await world.topic("orders", 1)
    for number in range(3):
        await world.commit((key, plain_batch(2 + number, b"%d" % number * 60)))
    for step in range(1, level + 1):
        await world.compact(step)
    return key


async def checked(
    world: DirectoryWorld, capsys: pytest.CaptureFixture[str], *words: str, status: int = 1
) -> dict[str, Any]:
    """Return what the command says of the partition. `words` may name another bucket."""
    line = ["partitions", "check", "orders:0", "--json", "--metastore-url", world.url]
    line += [*([] if "--bucket" in words else ["--bucket", f"file://{world.folder}"]), *words]
    assert await asyncio.to_thread(main, line) == status
    (found,) = json.loads(capsys.readouterr().out)["partitions"]
    assert isinstance(found, dict)
    return found


def fields(problem: dict[str, Any]) -> tuple[str, int, int]:
    return problem["kind"], problem["first_offset"], problem["last_offset"]


async def test_altered_bytes_are_repaired_as_it_says(world: DirectoryWorld, capsys: pytest.CaptureFixture[str]) -> None:
    key = await fill(world, level=1)
    records = await world.records(key)
    assert (await checked(world, capsys, "--deep", status=0))["problems"] == []
    path = await world.damage(key, 3)
    assert (await checked(world, capsys, status=0))["problems"] == [], "no reader met it yet"
    (found,) = (await checked(world, capsys, "--deep"))["problems"]
    assert fields(found) == ("altered", 2, 4)
    assert str(path).endswith(found["object"])
    assert (found["found"], found["copy"][:5]) == (None, "file ")
    await world.codes(key)  # readers meet it
    (found,) = (await checked(world, capsys))["problems"]
    assert found["found"] is not None
    assert found["to_do"] == "headrace damage repair orders --partition 0 --offset 2"
    text = await world.command(capsys, "partitions", "check", "orders", status=1)
    assert "orders:0 cannot be read in part: offsets=0-8" in text
    assert "altered: offsets=2-4" in text
    assert f"since {found['found']}" in text
    await world.command(capsys, *found["to_do"].split()[1:], "--yes", status=0)
    assert (await checked(world, capsys, "--deep", status=0))["problems"] == []
    assert await world.records(key) == records


async def test_an_object_that_is_gone_has_no_copy_unless_its_sources_are_there(
    world: DirectoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    key = await fill(world, level=2)
    (extent,) = await world.extents(key)
    assert extent.file_id is not None
    stored = (world.folder / object_key(extent.file_id)).read_bytes()
    (world.folder / object_key(extent.file_id)).unlink()
    (found, *more) = (await checked(world, capsys))["problems"]
    assert (fields(found), more) == (("missing", 0, 8), [])
    assert found["copy"] is not None, "the merged file that it was made of is still there"
    assert found["to_do"] == "headrace damage repair orders --partition 0 --offset 0"
    for file_id, file in (await world.file_rows()).items():
        if file["dead_at"]:
            (world.folder / object_key(file_id)).unlink()
    row = DamagedExtent(*(extent.file_id, extent.position, extent.length, key, 0, 8), DamageKind.MISSING, "gone")
    await world.postgres.compaction.note_damage([FoundDamage(row, 0, 8)])
    (found,) = (await checked(world, capsys))["problems"]
    assert found["copy"] is None
    assert found["found"] is not None
    assert found["to_do"].startswith(f"restore {object_key(extent.file_id)} from a version or a copy")
    assert found["to_do"].endswith("headrace damage skip orders --partition 0 --offset 0")
    (world.folder / object_key(extent.file_id)).write_bytes(stored)
    assert (await checked(world, capsys, status=0))["problems"] == [], "what was recorded was restored"


async def test_short_missing_and_refused_objects_have_other_remedies(
    world: DirectoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    key = await fill(world, level=0)
    short, gone, refused = [(one, world.folder / object_key(one.source)) for one in await world.extents(key)]
    short[1].write_bytes(short[1].read_bytes()[: short[0].position + 30])
    gone[1].unlink()
    refused[1].unlink()
    refused[1].symlink_to(refused[1].name)  # a loop, which the file system refuses to follow
    found = (await checked(world, capsys))["problems"]
    assert [fields(one) for one in found] == [("altered", 0, 1), ("missing", 2, 4), ("refused", 5, 8)]
    assert "exceeds the object" in found[0]["why"]
    assert "symbolic links" in found[2]["why"]
    assert found[2]["to_do"].startswith(f"let Headrace read {object_key(refused[0].source)}")


@pytest.mark.slow
async def test_an_object_that_a_policy_hides_is_refused_and_not_lost(
    world: DirectoryWorld, capsys: pytest.CaptureFixture[str], moto_url: str
) -> None:
    key = await fill(world, level=0)
    extent = (await world.extents(key))[2]
    assert extent.file_id is not None
    s3, prefix = boto3.client("s3", endpoint_url=moto_url), uuid.uuid4().hex
    for path in (path for path in world.folder.rglob("*") if path.is_file()):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(world.folder)}", Body=path.read_bytes())
    hidden = f"{prefix}/{object_key(extent.file_id)}"
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": f"arn:aws:s3:::{BUCKET}/{hidden}",
    }
    s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    bucket = ("--bucket", f"s3://{BUCKET}/{prefix}", "--s3-endpoint", moto_url, "--s3-region", "us-east-1")
    try:
        (found,) = (await checked(world, capsys, *bucket))["problems"]
    finally:
        s3.delete_bucket_policy(Bucket=BUCKET)
    assert fields(found) == ("refused", 5, 8)
    assert "status=403" in found["why"]
    assert found["to_do"].startswith(f"let Headrace read {object_key(extent.file_id)}")
    assert "headrace damage skip" not in found["to_do"]
    assert (await checked(world, capsys, *bucket, "--deep", status=0))["problems"] == [], "the bytes are sound"


async def test_a_part_of_a_long_partition_and_what_is_behind(
    world: DirectoryWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    key = await fill(world, level=0)
    found = await checked(world, capsys, "--max-extents", "2", status=0)
    assert (found["extents"], found["checked_to"], found["high_watermark"]) == (2, 5, 9)
    assert (await checked(world, capsys, "--from-offset", "5", status=0))["extents"] == 1
    assert found["behind"] == []
    async with world.postgres.pool.connection() as connection:
        await connection.execute(
            "INSERT INTO group_offsets (group_id, partition_key, committed_offset, leader_epoch, metadata,"
            " committed_at) VALUES ('slow', %s, 2, 0, '', clock_timestamp())",
            [key],
        )
        await world.postgres.jobs.enqueue_jobs([NewJob("plan", "late")])
        await connection.execute("UPDATE jobs SET due_at = clock_timestamp() - interval '1 hour' WHERE key = 'late'")
    (slow,) = (await checked(world, capsys, status=0))["behind"]
    assert slow["what"] == "group slow"
    assert slow["found"].startswith("7 records behind, at offset 2; that one is ")
    assert slow["to_do"].startswith("headrace groups describe slow --members")
    await world.postgres.retention.move_log_starts([LogStartTarget(key, 5)], max_extents=10)
    (slow,) = (await checked(world, capsys, status=0))["behind"]
    assert slow["found"] == "its next offset 2 is below the log start 5: it was deleted unread"
    text = await world.command(capsys, "partitions", "check", "orders", status=0)
    assert "orders:0 ok: offsets=5-8" in text
    assert "behind: merging of files (job plan): due for 3" in text
    shutil.rmtree(world.folder / "segments")
    assert [fields(one)[1:] for one in (await checked(world, capsys))["problems"]] == [(5, 8)]
    for words in ("orders:7", "no-such", "orders:x"):
        await world.command(capsys, "partitions", "check", words, status=1)
