"""300 share sessions with 9,900 partitions each, which do not exist, and 3,000 small ones with member ids of 32 KB."""

from __future__ import annotations

import struct
import uuid
from datetime import timedelta

from kio.schema.errors import ErrorCode

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.typed_frames import Asking, frame, part

_SHARE_FETCH, _VERSION = 78, 2
_CODE_AT = 4 + 1 + 4
"""After the header with its tags, and the throttle time."""
_PER_CONNECTION = 25


def session(member_id: str, partitions: int) -> bytes:
    """A request that opens a session of the member with so many partitions."""
    asked = tuple(
        part(_SHARE_FETCH, _VERSION, "FetchPartition", partition_index=index, acknowledgement_batches=())
        for index in range(partitions)
    )
    topic = part(_SHARE_FETCH, _VERSION, "FetchTopic", topic_id=uuid.UUID(int=9), partitions=asked)
    return frame(
        *(_SHARE_FETCH, _VERSION),
        group_id="hostile",
        member_id=member_id,
        share_session_epoch=0,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=1 << 20,
        max_records=1,
        batch_size=1,
        share_acquire_mode=0,
        is_renew_ack=False,
        topics=(topic,),
        forgotten_topics_data=(),
    )


async def attack(target: AttackedAgent) -> str:
    """Many on each connection, which stays open: a session ends with its connection."""
    wanted = [("m" * 36, 9_900)] * 300 + [("m" * 32_000, 1)] * 3_000
    connections, codes = list[Asking](), list[int]()
    try:
        for number, (text, partitions) in enumerate(wanted):
            if number % _PER_CONNECTION == 0:
                connections.append(Asking(*target.kafka))
            member_id = f"{number:05}{text}"[: len(text)]
            answer = await connections[-1].ask(session(member_id, partitions))
            codes += struct.unpack_from(">h", answer, _CODE_AT) if answer else ()
    finally:
        for connection in connections:
            await connection.__aexit__(None, None, None)
    refused = codes.count(ErrorCode.share_session_limit_reached)
    return f"{codes.count(0)} sessions were opened, {refused} refused, {len(wanted) - len(codes)} not answered"
