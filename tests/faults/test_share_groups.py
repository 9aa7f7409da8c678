"""A share group behind one address, in three zones: each member is connected to any agent, which asks the group's
coordinator, and that one is killed (X12).

Fault model: SIGKILL of the coordinator, with turns under way; the balancer then reaches the other agents. An agent of
the previous release, which knows no share groups, is in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from headrace.cli.main import main
from headrace.metastore.postgres.migrate import migrate
from tests import previous_release
from tests.agent_process import AgentUnderTest, until_told
from tests.compat.test_share_consumers import PARTITIONS, Heard, Start, produce, start
from tests.faults.shared_cluster import SharedCluster, shared_cluster
from tests.faults.test_rolling_upgrade import old_cluster, previous
from tests.faults.test_two_agents import _create
from tests.share_member import PATIENCE_SECONDS, ShareMember
from tests.waiting import until

__all__ = ["old_cluster", "previous", "start"]
ZONES = ("a", "b", "c")
RECORDS = 600


@pytest.mark.slow
@pytest.mark.needs("kafka-clients")
@pytest.mark.requirement("X12")
def test_members_behind_one_address(module_agent_settings: dict[str, object], start: Start) -> None:
    topic = "one-address"
    with shared_cluster(module_agent_settings, 3) as cluster:
        cluster.topic(topic, PARTITIONS)
        members = [start(cluster.address, topic, 10) for _ in range(3)]
        produce(cluster.address, topic, range(300))
        heard = Heard()
        heard.until_accepted(members, range(300))
        for member in members:
            member.close()
        heard.settle(members)
        assert set(heard.accepted.values()) == {1}


class Worker(threading.Thread):
    """A member that accepts what it gets. `problems`: records that came after the group had heard of their acceptance.
    `unsure`: those of which no member knows whether their acceptance was stored.
    """

    def __init__(self, address: str, topic: str, accepted: set[str], unsure: set[str], problems: list[str]) -> None:
        super().__init__(daemon=True)
        self._member = ShareMember(address, topic, topic)
        self._accepted, self._unsure, self._problems = accepted, unsure, problems
        self.stopping = threading.Event()

    def run(self) -> None:
        self._member.join()
        while not self.stopping.is_set():
            known = set(self._accepted)
            records = self._member.poll(40)
            self._problems += [str(record) for record in records if record.value in known]
            values = {str(record.value) for record in records}
            if records and self._member.acknowledge(records):
                self._accepted |= values
            else:
                self._unsure |= values
        self._member.leave()


@pytest.mark.slow
@pytest.mark.requirement("X12")
def test_the_coordinator_is_killed_in_three_zones_behind_one_address(agent_settings: dict[str, object]) -> None:
    topic, accepted, unsure, problems = "zones", set[str](), set[str](), list[str]()
    with shared_cluster(agent_settings, 3, ZONES) as cluster:
        cluster.topic(topic, PARTITIONS)
        earliest = "share.auto.offset.reset=earliest"
        assert main(["configs", "set", "--group", topic, earliest, "-b", cluster.address]) == 0
        workers = [Worker(cluster.address, topic, accepted, unsure, problems) for _ in range(4)]
        for worker in workers:
            worker.start()
        produce(cluster.address, topic, range(RECORDS // 2))
        until(lambda: len(accepted) > RECORDS // 6)
        killed = cluster.coordinator("share")
        killed.kill()
        produce(cluster.address, topic, range(RECORDS // 2, RECORDS))
        until(lambda: accepted | unsure >= set(map(str, range(RECORDS))))
        assert _coordinator_of_the_rest(cluster, killed)
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(PATIENCE_SECONDS)
            assert not worker.is_alive()
    assert not problems, "delivered after its acceptance was answered"


def _coordinator_of_the_rest(cluster: SharedCluster, killed: AgentUnderTest) -> bool:
    cluster.agents.remove(killed)
    found = cluster.coordinator("share") is not killed
    cluster.agents.append(killed)
    return found


@pytest.mark.slow
@pytest.mark.requirement("X9", "X12")
async def test_a_share_group_begins_once_every_agent_knows_what_it_is(
    previous: object, old_cluster: dict[str, object]
) -> None:
    """Until then each request gets UNSUPPORTED_VERSION, whichever agent it comes to, and the level cannot rise."""
    await asyncio.to_thread(migrate, str(old_cluster["metastore.url"]))
    await asyncio.to_thread(_with_both_releases, previous, old_cluster)


def _with_both_releases(previous: object, settings: dict[str, object]) -> None:
    environment = previous_release.environment(previous)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        new = stack.enter_context(AgentUnderTest(settings))
        old = stack.enter_context(AgentUnderTest(settings, environment))
        _create(new.kafka, "mixed")
        until_told([new, old], "mixed")
        member = ShareMember(new.kafka, "workers", "mixed")
        member._until(member._look_up)
        upgrade = ["features", "upgrade", "--feature", "share.version=1", "-b", new.kafka]
        assert main(upgrade) != 0, "an agent does not know share groups"
        assert _own_code(new, member) is ErrorCode.unsupported_version
        assert old.stop() == 0
        until(lambda: main(upgrade) == 0)
        assert main(["configs", "set", "--group", "workers", "share.auto.offset.reset=earliest", "-b", new.kafka]) == 0
        member.join()
        producer = confluent_kafka.Producer({"bootstrap.servers": new.kafka})
        producer.produce("mixed", b"1")
        assert producer.flush(PATIENCE_SECONDS) == 0
        until(lambda: bool(records := member.poll()) and member.acknowledge(records))
        member.leave()


def _own_code(agent: AgentUnderTest, member: ShareMember) -> ErrorCode:
    """Return what this agent answers to a heartbeat, also if another one coordinates the group."""
    return member.heartbeat_code(0, agent.kafka)
