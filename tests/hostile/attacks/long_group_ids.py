"""Group ids of 150,000 characters in 400 commits and 1,500 heartbeats, and 30 members with a rack of 7 MB."""

from __future__ import annotations

import asyncio
import datetime

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.metrics_page import memory_in_use, read_page
from tests.hostile.typed_frames import Asking, frame, part

MIB = 1024 * 1024
_COMMIT, _COMMIT_VERSION = 8, 8
_HEARTBEAT, _HEARTBEAT_VERSION = 68, 1
ID_CHARACTERS = 150_000
TOPIC = "long-group-ids"


def commit(number: int, characters: int = ID_CHARACTERS) -> bytes:
    """Make a commit of one offset, by a consumer that assigns itself."""
    offset = part(
        _COMMIT, _COMMIT_VERSION, "OffsetCommitRequestPartition",
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="m",
    )  # fmt: skip
    topic = part(_COMMIT, _COMMIT_VERSION, "OffsetCommitRequestTopic", name=TOPIC, partitions=(offset,))
    return frame(
        _COMMIT, _COMMIT_VERSION,
        group_id=f"{number:06d}".ljust(characters, "b"), generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=(topic,),
    )  # fmt: skip


def heartbeat(group_id: str, number: int, rack: str | None = None) -> bytes:
    """Make a heartbeat of a new member."""
    return frame(
        _HEARTBEAT, _HEARTBEAT_VERSION,
        group_id=group_id, member_id=f"m{number}", member_epoch=0, instance_id=None, rack_id=rack,
        rebalance_timeout=datetime.timedelta(minutes=5), subscribed_topic_names=(TOPIC,),
        subscribed_topic_regex=None, server_assignor=None, topic_partitions=(),
    )  # fmt: skip


async def attack(target: AttackedAgent) -> str:
    """One after another."""
    async with Asking(*target.kafka) as connection:
        for number in range(400):
            await connection.ask(commit(number))
        for number in range(1_500):
            await connection.ask(heartbeat(f"{number:06d}".ljust(ID_CHARACTERS, "b"), number))
        for number in range(30):
            await connection.ask(heartbeat(f"rack-{number}", number, "r" * 7_000_000))
    host, port = target.http
    used = memory_in_use(await asyncio.to_thread(read_page, f"{host}:{port}"))
    longest = max(map(len, target.log.read_text(errors="replace").splitlines()), default=0)
    groups = (used.get("groups", 0) + used.get("idle_groups", 0)) / MIB
    return f"the agent counts {groups:.1f} MiB of groups; the longest line of its log has {longest:,} characters"
