"""`headrace segments history` and `headrace dump-log --audit` show the same once the bucket has a part of the trail."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import psycopg
import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.jobs.kinds import ARCHIVE_AUDIT
from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.segment_states import base64url
from headrace.metastore.audit_trail import ObjectWriter
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from tests.metastore.lifecycle_rows import TOPIC, LifecycleRows, one_life

pytestmark = pytest.mark.requirement("R3")
RECORDS = 4


async def move(url: str, part: int, bucket: str) -> None:
    """The first records of the trail, to the bucket, as the job does."""
    store = open_store(bucket, StoreOptions.of(Settings()), clock=SystemClock(), rng=random.Random(1))
    metastore = await PostgresMetastore.open(url, Settings())
    await metastore.jobs.enqueue_jobs([ARCHIVE_AUDIT.once()])
    job = await metastore.jobs.claim_job("test", [ARCHIVE_AUDIT.name], 60_000)
    assert job is not None
    writer = ObjectWriter()
    writer.add((await metastore.segment_logs.read_audit_log(part, 0, RECORDS)).rows)
    data, index_size = writer.finish()
    archived = ArchivedAudit(part, 0, RECORDS - 1, RECORDS, 0, len(data), index_size, job.token.epoch)
    await store.put(archived.object_key, data)
    assert await metastore.audit_archive.archive_audit(job.token, archived)
    await metastore.close()
    await store.close()


@pytest.mark.parametrize(
    "words",
    [
        ("segments", "history", "--topic", base64url(TOPIC), "--json"),
        ("dump-log", "--remote-log-metadata-decoder", "--audit"),
    ],
    ids=lambda words: words[0],
)
def test_the_same_records_are_shown(
    words: tuple[str, ...], metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(metastore_url) as connection:
        rows = LifecycleRows(connection)
        one_life(rows)
    bucket = f"file://{tmp_path}/bucket"

    def shown(*flags: str) -> tuple[int, str, str]:
        return main([*words, "--metastore-url", metastore_url, *flags]), *capsys.readouterr()

    status, before, _ = shown()
    assert status == 0
    asyncio.run(move(metastore_url, rows.partition, bucket))
    assert shown("--bucket", bucket)[:2] == (0, before)
    status, _, error = shown()
    assert status == 1
    assert "the older part of the audit trail is in the bucket: set bucket" in error
