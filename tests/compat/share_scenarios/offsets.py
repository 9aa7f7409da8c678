"""Scenarios of a group's offsets and of configs: what tools change, and what clients see of it.

Place: in SCENARIOS (__init__.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from tests.compat.share_scenarios.member import accept
from tests.compat.share_scenarios.scene import Row, Scene
from tests.compat.share_scenarios.server import until


def offsets_of_unknown_groups(scene: Scene) -> Iterator[Row]:
    """Describe, alter and delete offsets of groups that do not exist."""
    scene.produce(10)
    unknown, never = f"{scene.group}-unknown", f"{scene.group}-never"
    yield "describe", scene.described_as_a_whole(unknown)
    yield "alter", scene.alter(5, group=unknown)
    yield "describe after it", scene.described(group=unknown)
    yield "listed", scene.listed(unknown)
    yield "delete offsets of another", scene.delete_offsets(group=never)
    yield "delete another", scene.delete_group(never)


def offsets_of_a_group_with_members(scene: Scene) -> Iterator[Row]:
    """Change the offsets of a group that has a member."""
    scene.produce(10)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        yield "accept 0-3", member.acknowledge(accept(0, 3))
        yield "alter", scene.alter(2)
        yield "delete offsets", scene.delete_offsets()
        yield "delete the group", scene.delete_group()
        yield "close the session", member.close_session()
        yield "leave", member.leave()
    _until_empty(scene)
    yield "described", scene.described()


def offsets_of_an_empty_group(scene: Scene) -> Iterator[Row]:
    """Change the offsets of a group that has no member any more."""
    scene.produce(10)
    other, _ = scene.another_topic()
    unknown = f"none-{uuid.uuid4()}"
    _read(scene, 3)
    yield "alter to 2", scene.alter(2)
    yield "described", scene.described()
    yield "alter to a negative offset", scene.alter(-5)
    yield "alter an unknown topic", scene.alter(2, topic=unknown)
    yield "alter an unknown partition", scene.alter(2, partition=9)
    yield "alter a topic that was never read", scene.alter(0, topic=other)
    yield "describe that topic", scene.described(other)
    yield "delete an unknown topic", scene.delete_offsets(topic=unknown)
    yield "delete that topic", scene.delete_offsets(topic=other)
    yield "delete that topic again", scene.delete_offsets(topic=other)
    yield "describe it after that", scene.described(other)
    yield "describe an unknown topic", scene.described(unknown)
    yield "delete the topic that was read", scene.delete_offsets()
    yield "the group", scene.listed()
    yield "describe the topic", scene.described()
    yield "delete the group", scene.delete_group()
    yield "delete the group again", scene.delete_group()
    yield "the group after that", scene.listed()


def offset_beyond_the_end(scene: Scene) -> Iterator[Row]:
    """Alter an offset to one that no record has yet."""
    scene.produce(10)
    _read(scene, 9)
    yield "alter to 99", scene.alter(99)
    yield "described", scene.described()
    scene.produce(2)
    with scene.joined() as member:
        yield "fetch after two more records", " ".join(member.fetch() for _ in range(3))


def altered_offset_is_read(scene: Scene) -> Iterator[Row]:
    """Read from an altered offset."""
    scene.produce(10)
    _read(scene, 9)
    yield "alter to 4", scene.alter(4)
    with scene.joined() as member:
        yield "acquire", member.acquire()


def clients_that_left_still_ask(scene: Scene) -> Iterator[Row]:
    """Alter and delete offsets while a client that left the group continues its session."""
    scene.produce(10)
    with scene.joined() as member:
        yield "acquire", member.acquire()
        yield "leave", member.leave()
        _until_empty(scene)
        yield "alter to 2", scene.alter(2)
        yield "acknowledge 0-4", member.acknowledge(accept(0, 4))
        yield "described", scene.described()
        yield "acquire", member.acquire()
        yield "delete", scene.delete_offsets()
        yield "fetch", member.fetch()
        yield "described after it", scene.described()


def one_altered_partition(scene: Scene) -> Iterator[Row]:
    """Alter one of two partitions of a group that begins with the latest record."""
    scene.server.add_partitions(scene.topic, 2)
    scene.configure(share_auto_offset_reset="latest")
    for partition in range(2):
        scene.produce(5, partition)
    yield "alter partition 0 to 2", scene.alter(2)
    with scene.member() as member:
        member.join(scene.topic, partitions=2)
        yield "partition 0", member.acquire()
        with scene.member() as reader:
            yield "partition 1, old records", " ".join(reader.fetch(partition=1) for _ in range(4))
            scene.produce(2, partition=1)
            yield "partition 1, later records", reader.acquire(partition=1)


def configs(scene: Scene) -> Iterator[Row]:
    """Set configs of a group to values, most of which are invalid."""
    for name, values in {
        "share.record.lock.duration.ms": ("100", "99999999"),
        "share.delivery.count.limit": ("1", "100"),
        "share.auto.offset.reset": (
            "by_duration:1h", "by_duration:-PT1H", "by_duration:P1DT1H", "by_duration:PT0S", "by_duration:PT1.5H",
            "by_duration:PT+1H", "by_duration:P1W", "none", "EARLIEST",
        ),
        "share.isolation.level": ("READ_COMMITTED", "x"),
        "share.partition.max.record.locks": ("1",),
        "share.session.timeout.ms": ("1",),
        "share.heartbeat.interval.ms": ("1", "60000"),
        "share.renew.acknowledge.enable": ("maybe",),
        "share.nothing": ("1",),
    }.items():  # fmt: skip
        for value in values:
            code = scene.server.group_config_code(f"{scene.group}-{name}", name, value)
            yield f"{name}={value}", code.name.upper()


def _read(scene: Scene, last: int) -> None:
    """Accept the records up to this one, and leave."""
    with scene.joined() as member:
        assert "x" in member.acquire()
        assert member.acknowledge(accept(0, last)) == "NONE"
        member.close_session()
        member.leave()
    _until_empty(scene)


def _until_empty(scene: Scene) -> None:
    until(lambda: scene.listed().endswith("Empty"), f"{scene.group} is empty")
