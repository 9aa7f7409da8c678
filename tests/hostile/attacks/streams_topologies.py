"""Topologies of streams groups: chains, loops, as many tasks as a group may have and more, 20 MB of names, and 500 of
1 MB.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from headrace.protocol.typed import schema
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.typed_frames import Asking, frame, part

_HEARTBEAT, _VERSION = 88, 0
TOPIC = "bystanders"
"""A topic that is there."""
WIDE, PARTITIONS, MEMBERS = "wide", 10, 20
"""Each reader of this topic has so many tasks; so many members share them."""


def _topic(name: str) -> Any:
    return part(_HEARTBEAT, _VERSION, "TopicInfo", name=name, partitions=0, replication_factor=0, topic_configs=())


def _sub(name: str, sources: tuple[str, ...], reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> Any:
    return part(
        _HEARTBEAT, _VERSION, "Subtopology",
        subtopology_id=name, source_topics=sources, source_topic_regex=(), state_changelog_topics=(),
        repartition_sink_topics=writes, repartition_source_topics=tuple(map(_topic, reads)), copartition_groups=(),
    )  # fmt: skip


def join(group: str, *subtopologies: Any, member: str = "m") -> bytes:
    """Make the heartbeat of a member that joins with a topology."""
    topology = part(_HEARTBEAT, _VERSION, "Topology", epoch=0, subtopologies=subtopologies)
    return frame(
        _HEARTBEAT, _VERSION,
        group_id=group, member_id=member, member_epoch=0, endpoint_information_epoch=-1, instance_id=None, rack_id=None,
        rebalance_timeout=datetime.timedelta(minutes=5), topology=topology, active_tasks=(), standby_tasks=(),
        warmup_tasks=(), process_id="p", user_endpoint=None, client_tags=None, task_offsets=None,
        task_end_offsets=None, shutdown_application=False,
    )  # fmt: skip


def loop(count: int) -> list[Any]:
    """Return subtopologies of which each reads what another one writes."""
    return [_sub(str(at), (), (f"r{at}",), (f"r{(at + 1) % count}",)) for at in range(count)]


def topologies() -> dict[str, bytes]:
    """Return the attacks, by what they are."""
    chain = [_sub("0", (TOPIC,), (), ("r1",))]
    chain += [_sub(str(at), (), (f"r{at}",), (f"r{at + 1}",)) for at in range(1, 1_000)]
    return {
        "a chain of 1,000, backwards": join("chain", *reversed(chain)),
        "a loop of 1,000": join("loop", *loop(1_000)),
        "5,000 readers of one topic": join("tasks", *(_sub(str(at), (TOPIC,)) for at in range(5_000))),
        "20,010 tasks": join("more", *(_sub(str(at), (WIDE,)) for at in range(2_001))),
        "20 MB of names": join("names", _sub("0", tuple(f"{at:06d}".ljust(240, "x") for at in range(80_000)))),
        "an id of 5 MB": join("id", _sub("x" * 5_000_000, (TOPIC,))),
    }


async def prepare(target: AttackedAgent) -> None:
    """Create the topic of many tasks."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    await asyncio.to_thread(lambda: admin.create_topics([NewTopic(WIDE, PARTITIONS)])[WIDE].result(60))


async def attack(target: AttackedAgent) -> str:
    """One after another, then many groups of which each is as large as it may be."""
    told = []
    async with Asking(*target.kafka) as connection:
        for what, request in topologies().items():
            told.append(f"{what}: {_code(await connection.ask(request))}")
        readers, joined = [_sub(str(at), (WIDE,)) for at in range(2_000)], Counter[str]()
        for number in range(MEMBERS):
            joined[_code(await connection.ask(join("wide", *readers, member=f"m{number}")))] += 1
        told.append(f"{MEMBERS} members with 20,000 tasks: {dict(joined)}")
        codes = Counter[str]()
        names = tuple(f"{at:05d}".ljust(200, "y") for at in range(3_000))
        for number in range(500):
            codes[_code(await connection.ask(join(f"large-{number}", _sub("0", names))))] += 1
    return "; ".join(told) + f"; 500 groups of 1 MB: {dict(codes)}"


def _code(answer: bytes) -> str:
    if not answer:
        return "closed"
    return ErrorCode(schema(_HEARTBEAT, _VERSION).decode_response(answer).error_code).name
