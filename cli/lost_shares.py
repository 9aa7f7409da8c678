"""Prints which acknowledgements of share groups a promotion or restore lost: a part of `headrace audit --lost`.

Place: under audit.py; compactor/lost_shares.py finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.cli.record_json import plain
from headrace.cli.times import iso_time
from headrace.compactor.lost_shares import LostShare, LostShares
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage


def lost_share_lines(found: LostShares, image: MetadataImage) -> Iterator[str]:
    """Yield a line for each group and partition, and how much is known."""
    for lost in found.lost:
        topic, index = _partition(lost, image)
        offsets = ",".join(f"{first}-{last}" for first, last in lost.ranges)
        gone = "" if lost.is_known else " (this metastore had nothing of the group there)"
        yield (
            f"share group {plain(lost.group_id)}: {topic} partition={index} acknowledged={lost.records}"
            f" offsets={offsets}{gone}"
        )
    if found.stored_ms or found.agents_ms:
        stored = iso_time(found.stored_ms) if found.stored_ms else "never"
        agents = iso_time(found.agents_ms) if found.agents_ms else "never"
        yield (
            f"acknowledgements of share groups that were lost: {sum(lost.records for lost in found.lost)}; their"
            f" records are delivered again. Recorded last: all groups {stored}, by agents that stopped or lost the"
            f" metastore {agents}; what was acknowledged later is not listed"
        )


def lost_shares_as_dict(found: LostShares, image: MetadataImage) -> dict[str, Any]:
    """Return what `lost_share_lines` says, for programs."""
    lost = []
    for each in found.lost:
        topic, index = _partition(each, image)
        lost.append(
            {
                "group": each.group_id,
                "topic": topic,
                "partition_index": index,
                "records": each.records,
                "offsets": each.ranges,
                "is_known": each.is_known,
            }
        )
    return {"lost": lost, "stored_ms": found.stored_ms, "agents_ms": found.agents_ms}


def _partition(lost: LostShare, image: MetadataImage) -> tuple[str | None, int]:
    number, index = split_partition_key(lost.partition_key)
    topic = image.topics_by_number.get(number)
    return None if topic is None else topic.name, index
