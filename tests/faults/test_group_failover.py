"""The coordinator of real consumers' groups is killed, stopped past its lease, drained; and a new agent joins.

Fault model: SIGKILL; SIGSTOP for longer than the session, and SIGCONT; SIGTERM. Four groups of two members
each (three libraries; eager and cooperative assignors) live on the agent that fails. No member may learn of
a rebalance: each continues with its partitions at its position, under the next coordinator.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.agent.cluster.routing import group_role, score
from tests.agent_process import AgentUnderTest
from tests.faults.group_readers import READERS, Reader

Pair = tuple[AgentUnderTest, AgentUnderTest]
PARTITIONS = 4
SECONDS_MAX = 300
SESSION_SECONDS = 3.0
REST_SECONDS = 2.0
"""Seconds without a change after which a group is taken for settled."""


class Scene:
    """Records numbered from 0 on, and the readers of every group."""

    def __init__(self, agents: Sequence[AgentUnderTest], home: AgentUnderTest, rivals: Sequence[int]) -> None:
        """All groups prefer `home` over the agents with the node ids `rivals`."""
        self.bootstrap = ",".join(agent.kafka for agent in agents)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.admin.create_topics([NewTopic("numbers", PARTITIONS)])["numbers"].result(300)
        self.sent = 0
        self.readers: list[Reader] = []
        for reader in READERS:
            names = (f"{reader.name}-{n}" for n in itertools.count())  # type: ignore[attr-defined]
            group = next(
                n for n in names if all(score(home.node_id, group_role(n)) > score(r, group_role(n)) for r in rivals)
            )
            self.readers += [reader(self.bootstrap, group, "numbers") for _ in range(2)]

    def groups(self) -> dict[str, list[Reader]]:
        return {name: list(each) for name, each in itertools.groupby(self.readers, lambda reader: reader.group)}

    def produce(self, count: int) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 4_000}
        )
        for number in range(self.sent, self.sent + count):
            producer.produce("numbers", str(number), partition=number % PARTITIONS)
        assert producer.flush(SECONDS_MAX) == 0
        self.sent += count

    def until(self, reached: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS_MAX
        while not reached():
            for reader in self.readers:
                if reader.failure is not None:
                    raise reader.failure
            assert time.monotonic() < end, (
                what,
                [(r.group, r.partitions, r.changes, len(r.values)) for r in self.readers],
            )
            time.sleep(0.05)

    def shared_out(self) -> None:
        """Each group's partitions are halved between its two members."""

        def halved() -> bool:
            return all([len(reader.partitions) for reader in each] == [2, 2] for each in self.groups().values())

        known, since = self.changes(), time.monotonic()

        def at_rest() -> bool:  # an assignor may want one more round
            nonlocal known, since
            if self.changes() != known or not halved():
                known, since = self.changes(), time.monotonic()
            return time.monotonic() > since + REST_SECONDS

        self.until(at_rest, "partitions shared out")

    def read_once(self) -> None:
        """Every group has read every record exactly once."""
        everything = list(range(self.sent))

        def read() -> bool:
            return all(
                len([value for reader in each for value in reader.values]) >= self.sent
                for each in self.groups().values()
            )

        self.until(read, "all records read")
        for group, each in self.groups().items():
            assert sorted(value for reader in each for value in reader.values) == everything, group

    def coordinators(self) -> set[int]:
        """Node ids of the agents that coordinate the groups."""
        described = self.admin.describe_consumer_groups(list(self.groups()))
        return {each.result(SECONDS_MAX).coordinator.id for each in described.values()}

    def changes(self) -> list[int]:
        return [len(reader.changes) for reader in self.readers]

    def close(self) -> None:
        """Close the readers: what was committed is where each group stopped reading. The commits while they read
        are waited for: a library tries the one of its close only once.
        """
        self.until(
            lambda: all(self.committed(group) == self.sent for group in self.groups()), "all positions committed"
        )
        for reader in self.readers:
            reader.closing.set()
        for reader in self.readers:
            reader.close()
        for group in self.groups():
            assert self.committed(group) == self.sent, group

    def committed(self, group: str) -> int:
        """The sum of a group's stored offsets."""
        request = confluent_kafka.ConsumerGroupTopicPartitions(group)
        found = self.admin.list_consumer_group_offsets([request])[group].result(300).topic_partitions
        return sum(position.offset for position in found)


@pytest.fixture
def settings(agent_settings: dict[str, object]) -> dict[str, object]:
    """Return the settings with the time for a leader to learn its topic before it shares it out: else one rebalance
    follows another.
    """
    return agent_settings | {"group.initial.rebalance.delay.ms": 1_000}


@pytest.fixture
def pair(settings: dict[str, object]) -> Iterator[Pair]:
    settings |= {"broker.session.timeout.ms": int(SESSION_SECONDS * 1000)}
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second:
        yield first, second


def _pause_past_the_lease(agent: AgentUnderTest) -> None:
    agent.pause()
    time.sleep(SESSION_SECONDS + 2)
    agent.resume()


FAULTS: dict[str, Callable[[AgentUnderTest], object]] = {
    "killed": AgentUnderTest.kill,
    "paused": _pause_past_the_lease,
    "drained": AgentUnderTest.stop,
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault == "killed" else pytest.mark.slow) for fault in FAULTS]
)
def test_members_carry_on_under_the_next_coordinator(pair: Pair, fault: str) -> None:
    home, heir = pair
    scene = Scene(pair, home, [heir.node_id])
    scene.produce(400)
    scene.shared_out()
    scene.read_once()
    before = scene.changes()

    FAULTS[fault](home)
    scene.produce(400)
    scene.read_once()
    time.sleep(3)  # several heartbeats to the next coordinator
    scene.produce(100)
    scene.read_once()
    assert scene.changes() == before, [reader.changes for reader in scene.readers]
    scene.close()


@pytest.mark.slow
def test_groups_move_to_a_new_agent_without_a_rebalance(settings: dict[str, object]) -> None:
    """Its node id is known beforehand, and all groups prefer it."""
    newcomer_id = 77
    with AgentUnderTest(settings) as first:
        newcomer = AgentUnderTest(settings | {"node.id": newcomer_id})
        newcomer.node_id = newcomer_id
        scene = Scene([first], newcomer, [first.node_id])
        scene.produce(200)
        scene.shared_out()
        scene.read_once()
        before = scene.changes()
        with newcomer:
            time.sleep(4)  # several heartbeats to the new coordinator
            scene.produce(200)
            scene.read_once()
            assert scene.changes() == before, [reader.changes for reader in scene.readers]
            scene.until(lambda: scene.coordinators() == {newcomer_id}, "groups at the new agent")
            scene.close()
