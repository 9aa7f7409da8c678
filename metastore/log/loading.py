"""The cluster's image as of now, for tools; an agent follows the log instead (agent/cluster/follower.py).

Invariant: reads only.
"""

from __future__ import annotations

from headrace.metastore.api.metadata_log import MetadataLogApi
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import ImageBuilder
from headrace.metastore.log.snapshot import load_snapshot


async def load_image(log: MetadataLogApi) -> MetadataImage:
    """The image at the log's head: the newest snapshot, then the records after it."""
    newest = await log.newest_snapshot()
    builder = ImageBuilder(MetadataImage() if newest is None else load_snapshot(newest.data))
    while records := await log.read_metadata(builder.offset):
        builder.add(records)
    return builder.finish()
