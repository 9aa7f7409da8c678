"""A consumer group driven manually: topics that change, saves on demand, and clients that behave as real ones.

Fault model: an answer may be lost, a save may fail (having happened or not), the coordinator may move to
another agent at any time and then knows what was stored, and a client may fall silent permanently.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.conversion import read_assignment
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.consumer.rules import ConsumerGroupRules
from headrace.agent.groups.consumer.topics import KnownTopics, gates_of
from headrace.agent.groups.group_values import (
    Abandon,
    Become,
    GroupEffect,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    Reply,
    Save,
    SyncAnswer,
    SyncRequest,
)
from headrace.agent.groups.members.member import MemberHeartbeatAnswer
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupRecord
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.topic_partitions import Split
from tests.protocol.embedded_bytes import subscription_bytes

SESSION, REBALANCE = 45.0, 60.0


class FakeTopics:
    """Topics that come, grow and go; numbers are never used twice."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicImage] = {}
        self._numbers = itertools.count(1)

    def put(self, name: str, partitions: int) -> None:
        """Create the topic, or let it grow."""
        known = self.by_name.get(name)
        number = next(self._numbers) if known is None else known.topic_number
        topic = TopicImage(uuid.UUID(int=number), number, name, partitions, partitions, (0,) * partitions)
        self.by_name = {**self.by_name, name: topic}

    def double(self, name: str) -> None:
        """Each partition is split in two, and has no boundary."""
        self.put(name, 2 * (count := len(self.by_name[name].leader_epochs)))
        self._change(name, {parent: Split(parent + count) for parent in range(count)})

    def set_boundary(self, name: str, parent: int, boundary: int) -> None:
        splits = self.by_name[name].splits
        self._change(name, {**splits, parent: Split(splits[parent].child, boundary)})

    def _change(self, name: str, splits: Mapping[int, Split]) -> None:
        self.by_name = {**self.by_name, name: replace(self.by_name[name], splits=splits)}

    def delete(self, name: str) -> None:
        self.by_name = {each: topic for each, topic in self.by_name.items() if each != name}

    def topics(self, patterns: Iterable[str]) -> KnownTopics:
        """Patterns here are prefixes with a trailing dot-star."""
        matches = {
            pattern: frozenset(t.topic_number for name, t in self.by_name.items() if name.startswith(pattern[:-2]))
            for pattern in patterns
        }
        gates = {topic.topic_number: gates_of(topic) for topic in self.by_name.values() if topic.splits}
        return KnownTopics(self.by_name, {topic.topic_number: topic for topic in self.by_name.values()}, matches, gates)

    def keys_of(self, names: Iterable[str]) -> frozenset[int]:
        found = [self.by_name[name] for name in names if name in self.by_name]
        return frozenset(key for t in found for i in range(len(t.leader_epochs)) if (key := t.key(i)) is not None)


class World:
    """One group, its store, its topics, and who waits for an answer."""

    def __init__(self, **settings: object) -> None:
        self.now = 0.0
        self.topics = FakeTopics()
        self.rules = ConsumerGroupRules(Settings(**settings))  # type: ignore[arg-type]
        self.durable: GroupRecord | None = None
        self.saves: list[Save] = []
        self.became: GroupRecord | None = None
        self.answers: dict[int, object] = {}
        self._open: set[int] = set()
        self._tokens = itertools.count()
        self._rng = random.Random(5)
        self.group = self.new_coordinator()

    def new_coordinator(self) -> ConsumerGroup:
        self.saves.clear()
        times = self.rules.times(MetadataImage(), "g")
        self.group = ConsumerGroup("g", self.rules, self.topics.topics, lambda: times, self._rng)
        if self.durable is not None:
            self.group.restore(self.now, self.durable)
        return self.group

    def move(self) -> None:
        """Another agent coordinates the group from now on; all waiting members have been answered."""
        self.perform(self.group.close(ErrorCode.not_coordinator))
        assert not self._open, "an answer was lost"
        self.new_coordinator()

    def token(self) -> int:
        token = next(self._tokens)
        self._open.add(token)
        return token

    def perform(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                assert not self.saves, "two saves at once"
                self.saves.append(effect)
            elif isinstance(effect, Reply):
                assert isinstance(effect.token, int)
                self._open.remove(effect.token)  # answered once
                self.answers[effect.token] = effect.answer
            elif isinstance(effect, Become):
                self.became = effect.record
            else:
                assert isinstance(effect, Abandon)
                self.move()

    def store(self, code: ErrorCode = ErrorCode.none, *, happened: bool = True) -> None:
        """The save under way ends."""
        save = self.saves.pop()
        if happened:
            self.durable = save.state.record()
        self.perform(self.group.saved(self.now, save.revision, code))

    def store_all(self) -> None:
        while self.saves:
            self.store()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.group.tick(self.now))

    def heartbeat(self, request: ConsumerHeartbeat) -> int:
        token = self.token()
        self.perform(self.group.member_heartbeat(self.now, request, token))
        return token

    def answered(self, token: int) -> MemberHeartbeatAnswer:
        """The answer, once all is stored."""
        self.store_all()
        answer = self.answers[token]
        assert isinstance(answer, MemberHeartbeatAnswer)
        return answer

    def say(self, member_id: str, epoch: int, **more: object) -> MemberHeartbeatAnswer:
        """One heartbeat, a full one when it joins."""
        if epoch == 0:
            more = {
                "rebalance_timeout": REBALANCE,
                "topic_names": frozenset({"t"}),
                "owned": frozenset(),
                **more,
            }
        request = ConsumerHeartbeat(member_id, epoch, **more)  # type: ignore[arg-type]
        return self.answered(self.heartbeat(request))


@dataclass(eq=False)
class Client:
    """A consumer of the consumer protocol: what it believes and consumes."""

    world: World
    member_id: str
    names: frozenset[str]
    pattern: str = ""
    instance_id: str | None = None
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    told: frozenset[int] | None = None
    """An assignment that it has learned of and not applied yet."""
    waiting: int | None = None
    say_all: bool = True

    def step(self) -> None:
        """Take the answer if there is one, else send the next heartbeat."""
        if self.waiting is not None:
            self._hear()
        elif self.told is not None:
            self.owned, self.told, self.say_all = self.told, None, True  # what went is committed and given up
        else:
            self.send()

    def send(self) -> None:
        joins = self.epoch == 0
        everything = joins or self.say_all
        request = ConsumerHeartbeat(
            self.member_id,
            self.epoch,
            self.instance_id if everything else None,
            rebalance_timeout=REBALANCE if everything else None,
            topic_names=self.names if everything else None,
            topic_pattern=self.pattern if everything else None,
            owned=self.owned if everything else None,
        )
        self.say_all = False
        self.waiting = self.world.heartbeat(request)

    def lose_answer(self) -> None:
        """It timed out: from here on it cannot know what the coordinator knows."""
        if self.waiting is not None:
            self.waiting, self.say_all = None, True

    def wants(self) -> frozenset[int]:
        """Partitions of all that it subscribes to."""
        matched = [n for n in self.world.topics.by_name if self.pattern and n.startswith(self.pattern[:-2])]
        return self.world.topics.keys_of([*self.names, *matched])

    def _hear(self) -> None:
        answer = self.world.answers.get(self.waiting if self.waiting is not None else -1)
        if answer is None:
            return
        self.waiting = None
        assert isinstance(answer, MemberHeartbeatAnswer)
        if answer.code is ErrorCode.none:
            assert answer.member_epoch >= self.epoch, "an epoch went back"
            self.epoch = answer.member_epoch
            if answer.assigned is not None:
                self.told = answer.assigned
        elif answer.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
            self.owned, self.told, self.epoch = frozenset(), None, 0
        else:
            assert answer.code in (
                ErrorCode.not_coordinator,
                ErrorCode.coordinator_not_available,
                ErrorCode.unreleased_instance_id,
            ), answer.code
            self.say_all = True


@dataclass(eq=False)
class ClassicClient:
    """A consumer of the classic protocol; a cooperative one keeps what it owns while it joins again."""

    world: World
    member_id: str
    names: frozenset[str]
    cooperative: bool
    generation: int = -1
    owned: frozenset[int] = frozenset()
    wants_to: str = "join"
    waiting: int | None = None
    pattern: str = field(default="", init=False)
    joined_for: frozenset[str] = frozenset()
    """The topics of its last join: it joins again if it wants others by now."""
    given_up: bool = False
    """Removed without having learned of it; until its next assignment others may get what it still consumes."""

    def step(self) -> None:
        if self.waiting is not None:
            self._hear()
        elif self.wants_to == "join":
            self._join()
        elif self.wants_to == "sync":
            self._wait_for_sync()
        else:
            code = self.world.group.classic_protocol.heartbeat(self.world.now, self._ref())
            if code is not ErrorCode.none:
                self._on_error(code)

    def lose_answer(self) -> None:
        if self.waiting is not None:
            self.waiting, self.wants_to = None, "join"

    def wants(self) -> frozenset[int]:
        return self.world.topics.keys_of(self.names)

    def _ref(self) -> MemberRef:
        return MemberRef(self.member_id, None, self.generation)

    def _join(self) -> None:
        if not self.cooperative:
            self.owned = frozenset()
        by_number = {t.topic_number: t.name for t in self.world.topics.by_name.values()}
        owned: dict[str, list[int]] = {}
        for number, index in map(split_partition_key, sorted(self.owned)):
            if number in by_number:
                owned.setdefault(by_number[number], []).append(index)
        self.joined_for = self.names
        metadata = subscription_bytes(sorted(self.names), owned)
        request = JoinRequest(
            MemberRef(self.member_id),
            "classic",
            "/host",
            SESSION,
            REBALANCE,
            "consumer",
            (MemberProtocol("cooperative-sticky", metadata),),
        )
        self.waiting = self.world.token()
        self.world.perform(self.world.group.classic_protocol.join(self.world.now, request, self.waiting))

    def _wait_for_sync(self) -> None:
        self.waiting = self.world.token()
        self.world.perform(
            self.world.group.classic_protocol.sync(self.world.now, SyncRequest(self._ref(), {}), self.waiting)
        )

    def _hear(self) -> None:
        answer = self.world.answers.get(self.waiting if self.waiting is not None else -1)
        if answer is None:
            return
        self.waiting = None
        assert isinstance(answer, JoinAnswer | SyncAnswer)
        if answer.code is not ErrorCode.none:
            self._on_error(answer.code)
        elif isinstance(answer, JoinAnswer):
            assert answer.leader_id == ""
            self.member_id, self.generation, self.wants_to = answer.member_id, answer.generation, "sync"
        else:
            given = read_assignment(answer.assignment, self.world.topics.topics(()))
            assert given is not None
            revoked = self.owned - given
            self.owned, self.given_up = given, False
            again = (revoked and self.cooperative) or self.joined_for != self.names
            self.wants_to = "join" if again else "nothing"

    def _on_error(self, code: ErrorCode) -> None:
        self.wants_to = "join"
        if code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self.owned, self.generation, self.given_up = frozenset(), -1, False
        elif code is ErrorCode.member_id_required:
            raise AssertionError("it came with a member id")
        else:
            assert code in (
                ErrorCode.rebalance_in_progress,
                ErrorCode.not_coordinator,
                ErrorCode.coordinator_not_available,
            ), code
