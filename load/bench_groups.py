"""What a consumer group (KIP-848) costs its coordinator: CPU seconds of the state machine alone, saves encoded.

Place: `python -m load.bench_groups`. Members join one by one, 20 to a save, heartbeat until all have
arrived, and then once more with nothing to say. One topic; `mixed` lets every second member subscribe to
another one too, which is the assignor's hard case.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.consumer_values import HeartbeatRequest
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.rules import ConsumerGroupRules
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import GroupEffect, Save
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupRecord
from headrace.metastore.log.image import MetadataImage, TopicImage

CASES = ((10, 100, False), (100, 1_000, False), (100, 10_000, False), (1_000, 10_000, False), (300, 3_000, True))
JOINS_PER_SAVE = 20


class _Bench:
    """One group and its saves."""

    def __init__(self, partitions: int) -> None:
        found = [_topic(1, "t", partitions), _topic(2, "u", 10)]
        self._topics = KnownTopics({t.name: t for t in found}, {t.topic_number: t for t in found}, {})
        self._tokens = itertools.count()
        self._save: Save | None = None
        self.record: GroupRecord | None = None
        self.group = self.new_group()

    def new_group(self) -> ConsumerGroup:
        rules = ConsumerGroupRules(Settings())
        times = rules.times(MetadataImage(), "g")
        return ConsumerGroup("g", rules, lambda _: self._topics, lambda: times, random.Random(1))

    def say(self, request: HeartbeatRequest) -> None:
        self._perform(self.group.consumer_heartbeat(0.0, request, next(self._tokens)))

    def store(self) -> None:
        while self._save is not None:
            save, self._save = self._save, None
            self.record = save.state.record()
            self._perform(self.group.saved(0.0, save.revision, ErrorCode.none))

    def _perform(self, effects: Iterable[GroupEffect]) -> None:
        self._save = next((effect for effect in effects if isinstance(effect, Save)), self._save)


def _topic(number: int, name: str, partitions: int) -> TopicImage:
    return TopicImage(uuid.UUID(int=number), number, name, partitions, partitions, (0,) * partitions)


def _measure(members: int, partitions: int, mixed: bool) -> str:
    bench = _Bench(partitions)
    began = time.process_time()
    for number in range(members):
        names = frozenset({"t", "u"} if mixed and number % 2 else {"t"})
        bench.say(HeartbeatRequest(f"m{number}", 0, rebalance_timeout=60.0, topic_names=names, owned=frozenset()))
        if number % JOINS_PER_SAVE == 0:
            bench.store()
    bench.store()
    joined = time.process_time()
    rounds = 0
    while bench.group.state_name != "Stable":
        rounds += 1
        for member in list(bench.group.roster):
            bench.say(HeartbeatRequest(member.member_id, member.epoch, owned=member.assigned))
        bench.store()
    arrived = time.process_time()
    for member in list(bench.group.roster):
        bench.say(HeartbeatRequest(member.member_id, member.epoch))
    idle = time.process_time()
    bench.group.snapshot().record()
    saved = time.process_time()
    assert bench.record is not None
    bench.new_group().restore(0.0, bench.record)
    restored = time.process_time()
    return (
        f"| {members:,} | {partitions:,} | {'mixed' if mixed else 'equal'} | {(joined - began) / members * 1e3:.2f} ms "
        f"| {rounds} | {(idle - arrived) / members * 1e6:.0f} µs | {(saved - idle) * 1e3:.1f} ms "
        f"| {len(bench.record.data):,} | {(restored - saved) * 1e3:.1f} ms |"
    )


def main() -> None:
    """The table of docs/operate/GROUPS.md."""
    print("| members | partitions | subscriptions | per join | rounds | heartbeat | save | bytes | restore |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        print(_measure(*case), flush=True)


if __name__ == "__main__":
    main()
