"""A streams group, its store, its topics, and threads of an application that follow it as Kafka Streams does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import Abandon, GroupEffect, MemberRef, Reply, Save
from headrace.agent.groups.members.member import JOIN_EPOCH, LEAVE_EPOCH, MemberHeartbeatAnswer, Partitions
from headrace.agent.groups.streams.group import StreamsAnswer, StreamsGroup
from headrace.agent.groups.streams.members import StreamsHeartbeat
from headrace.agent.groups.streams.rules import StreamsGroupConfigs
from headrace.agent.groups.streams.topology import InternalTopic, Subtopology, Topology, task_of
from headrace.metastore.api.groups import GroupRecord
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import MetadataImage, TopicImage
from tests.agent.groups.consumer.consumer_world import FakeTopics

SESSION, REBALANCE = 45.0, 60.0
CONFIGS = StreamsGroupConfigs(SESSION, 5.0, 0.0, 0.0, 0)
OFFSET_COMMIT = 9


def internal(name: str, count: int = 0, **configs: str) -> InternalTopic:
    return InternalTopic(name, count, 0, tuple(configs.items()))


def sub(
    name: str,
    sources: Iterable[str] = (),
    *,
    repartition: Iterable[InternalTopic] = (),
    sinks: Iterable[str] = (),
    logs: Iterable[str] = (),
    together: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> Subtopology:
    changelogs = tuple(internal(log) for log in logs)
    return Subtopology(name, tuple(sources), tuple(sinks), tuple(repartition), changelogs, tuple(together))


def topology(*subtopologies: Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch, subtopologies)


COUNT = topology(
    sub("0", ["words"], sinks=["by-word"]),
    sub("1", repartition=[internal("by-word")], logs=["counts"]),
)
"""The topology of a word count: subtopology 1 has state."""


class World:
    """One group. `effects` are performed at once; saves wait until they are stored."""

    def __init__(self, configs: StreamsGroupConfigs = CONFIGS, **counts: int) -> None:
        self.now, self.configs, self.size_max = 0.0, configs, 100
        self.topics = FakeTopics()
        for name, count in counts.items():
            self.topics.put(name.replace("_", "-"), count)
        self.durable: GroupRecord | None = None
        self.saves: list[Save] = []
        self.answers: dict[int, MemberHeartbeatAnswer] = {}
        self._tokens = itertools.count()
        self._image = MetadataImage()
        self.group = self.new_coordinator()

    def image(self) -> MetadataImage:
        by_name: Mapping[str, TopicImage] = self.topics.by_name
        if self._image.topics_by_name is not by_name:
            numbers = {topic.topic_number: topic for topic in by_name.values()}
            self._image = MetadataImage(topics_by_name=by_name, topics_by_number=numbers)
        return self._image

    def new_coordinator(self) -> StreamsGroup:
        self.saves.clear()
        self.group = StreamsGroup("g", lambda: self.size_max, lambda: self.configs, self.image)
        if self.durable is not None:
            self.group.restore(self.now, self.durable)
        return self.group

    def move(self) -> None:
        """Another agent coordinates the group from now on."""
        self.perform(self.group.close(ErrorCode.not_coordinator))
        self.new_coordinator()

    def send(self, request: StreamsHeartbeat) -> int:
        token = next(self._tokens)
        self.perform(self.group.member_heartbeat(self.now, request, token))
        return token

    def beat(self, member_id: str, epoch: int, **more: Any) -> StreamsAnswer:
        """Return the answer to a heartbeat, stored at once. Fields as in StreamsHeartbeat."""
        token = self.send(StreamsHeartbeat(member_id, epoch, **more))
        self.store_all()
        answer = self.answers.pop(token)
        if isinstance(answer, StreamsAnswer):
            return answer
        return StreamsAnswer(answer.code, member_id, answer.member_epoch, message=answer.message)

    def join(self, member_id: str, plan: Topology = COUNT, process_id: str | None = None, **more: Any) -> StreamsAnswer:
        said = {"rebalance_timeout": REBALANCE, "tasks": ((), ()), "process_id": process_id or f"p-{member_id}", **more}
        return self.beat(member_id, JOIN_EPOCH, topology=plan, **said)

    def store_all(self) -> None:
        while self.saves:
            self.store()

    def store(self, code: ErrorCode = ErrorCode.none, *, happened: bool = True) -> None:
        save = self.saves.pop(0)
        if code is ErrorCode.none or happened:
            self.durable = save.state.record()
        self.perform(self.group.saved(self.now, save.revision, code))

    def perform(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.saves.append(effect)
            elif isinstance(effect, Reply):
                assert isinstance(effect.token, int)
                assert isinstance(effect.answer, MemberHeartbeatAnswer)
                self.answers[effect.token] = effect.answer
            elif isinstance(effect, Abandon):
                self.new_coordinator()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.group.tick(self.now))

    def names_of(self, keys: Iterable[int] | None) -> list[str]:
        """Return tasks as people write them: 1_0, and 1_0s of a standby."""
        plan = self.group.topology
        assert plan is not None
        tasks = [task_of(key) for key in sorted(keys or ())]
        return [f"{plan.ids[t.subtopology]}_{t.partition}{'s' if t.is_standby else ''}" for t in tasks]

    def key_of(self, topic: str, partition: int) -> int:
        return partition_key(self.topics.by_name[topic].topic_number, partition)

    def create_missing(self, answer: StreamsAnswer) -> None:
        for topic in answer.missing:
            self.topics.put(topic.name, topic.partition_count)

    def commit(self, member_id: str, epoch: int, *keys: int) -> ErrorCode:
        return self.group.check_commit(self.now, MemberRef(member_id, None, epoch), OFFSET_COMMIT, keys)


def task_ids(plan: Topology, keys: Iterable[int], *, is_standby: bool) -> list[Any]:
    """Return these tasks as a request has them."""
    found: dict[str, list[int]] = {}
    for task in map(task_of, sorted(keys)):
        if task.is_standby == is_standby:
            found.setdefault(plan.ids[task.subtopology], []).append(task.partition)
    return [SimpleNamespace(subtopology_id=name, partitions=partitions) for name, partitions in found.items()]


@dataclass(eq=False)
class Thread:
    """One thread: it gives up what its assignment has not before it takes what is new."""

    world: World
    member_id: str
    process_id: str
    plan: Topology = COUNT
    epoch: int = JOIN_EPOCH
    owned: Partitions = frozenset()
    said: Partitions | None = frozenset()
    """What it told the coordinator last; None: it has to tell."""
    token: int | None = None
    assigned: Partitions | None = None
    """What it is about to have, once it gave up the rest."""
    epochs: list[int] = field(default_factory=list)

    def step(self) -> None:
        """Take the answer, give up, take over, or send a heartbeat: one of these."""
        if self.token is not None:
            if (answer := self.world.answers.pop(self.token, None)) is not None:
                self.token = None
                self._take(answer)
        elif self.assigned is not None and self.owned - self.assigned:
            self.owned &= self.assigned
        elif self.assigned is not None:
            self.owned, self.assigned, self.said = self.assigned, None, None
        else:
            self.token = self.world.send(self._request())

    def lose_answer(self) -> None:
        """The connection ends: it sends everything again."""
        self.token, self.said = None, None

    def leave(self) -> None:
        self.owned = frozenset()
        self.world.send(StreamsHeartbeat(self.member_id, LEAVE_EPOCH))

    def _request(self) -> StreamsHeartbeat:
        request = StreamsHeartbeat(self.member_id, self.epoch)
        if self.epoch == JOIN_EPOCH:
            more = {"rebalance_timeout": REBALANCE, "process_id": self.process_id, "tasks": ((), ())}
            return replace(request, topology=self.plan, **more)  # type: ignore[arg-type]
        if self.said is None or self.said != self.owned:
            self.said = self.owned
            tasks = tuple(task_ids(self.plan, self.owned, is_standby=role) for role in (False, True))
            return replace(request, tasks=tasks)  # type: ignore[arg-type]
        return request

    def _take(self, answer: MemberHeartbeatAnswer) -> None:
        if answer.code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned, self.said, self.assigned = JOIN_EPOCH, frozenset(), frozenset(), None
        elif answer.code is ErrorCode.none:
            self.epoch = answer.member_epoch
            self.epochs.append(self.epoch)
            if answer.assigned is not None:
                self.assigned = answer.assigned
            if isinstance(answer, StreamsAnswer):
                self.world.create_missing(answer)
        else:
            self.said = None
