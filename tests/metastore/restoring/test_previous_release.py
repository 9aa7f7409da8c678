"""Agents of the release before read a restored topic from the metadata log as this release does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import decode_record, encode_record
from headrace.metastore.postgres.store import PostgresMetastore
from tests import previous_release
from tests.metastore.commit_scenes import open_scene
from tests.metastore.restoring.restore_scenes import delete_restorably, keep_files, restore

REPLAY = """\
import sys
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import apply
image = apply(MetadataImage(), [bytes.fromhex(line) for line in sys.stdin.read().split()])
for topic in image.topics_by_name.values():
    print(topic.name, topic.topic_id, [topic.key(n) for n in range(3)], list(topic.leader_epochs))
"""


def _at_level_2(framed: bytes) -> bytes:
    """Return the record of a cluster in which such agents may run: a new one has a later metadata.format."""
    record = decode_record(framed)
    is_format = isinstance(record, FeatureLevelRecord) and record.name == METADATA_FORMAT
    return encode_record(replace(record, max_feature_level=2)) if is_format else framed


@pytest.mark.slow
@pytest.mark.requirement("X9")
async def test_the_release_before_computes_the_same_keys(metastore: PostgresMetastore) -> None:
    previous = previous_release.unpacked()
    scene = await open_scene(metastore, partitions=3)
    await keep_files(scene)
    await delete_restorably(scene)
    await restore(scene, "again")
    log = "\n".join(_at_level_2(record).hex() for record in await metastore.cluster.read_metadata(0))
    found = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", REPLAY],
        cwd=previous,
        env=dict(previous_release.environment(previous)),
        input=log,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not found.returncode, found.stderr
    assert found.stdout == f"again {scene.topic.topic_id} {scene.keys} {list(scene.topic.leader_epochs)}\n"
