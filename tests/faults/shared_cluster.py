"""Agents that all advertise the address of one balancer in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

from confluent_kafka.admin import AdminClient

from headrace.config.free_ports import free_ports
from tests.agent_process import SECONDS_MAX, AgentUnderTest, by_command
from tests.balancer import Balancer
from tests.kafka_clients import KafkaClients
from tests.waiting import until

VIRTUAL = 1_000_000_000


def member(
    settings: Mapping[str, object], port: int, advertised: str, start: Callable[..., AgentUnderTest] = AgentUnderTest
) -> AgentUnderTest:
    """Return an agent with a listener for clients at this port, advertised as `advertised`, and one for agents."""
    own = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:0",
        "advertised.listeners": f"PLAINTEXT://{advertised}",
        "inter.broker.listener.name": "INTERNAL",
    }
    return start({**settings, **own})


class SharedCluster:
    """`agents` behind `balancer`; `ports` are those of their listeners for clients."""

    def __init__(
        self, settings: Mapping[str, object], count: int, balancer: Balancer, zones: Sequence[str] = ()
    ) -> None:
        """`zones`: the agents are in these, in turn."""
        self.balancer = balancer
        self.ports = free_ports(count)
        self._settings = settings
        self._zones = dict(zip(self.ports, cycle(zones), strict=False))
        balancer.backends = [f"127.0.0.1:{port}" for port in self.ports]
        first, *others = self.ports  # one starts as operators start it
        self.agents = [member(self._of(first), first, balancer.address, by_command), *map(self.make, others)]

    @property
    def address(self) -> str:
        """Return where clients connect."""
        return self.balancer.address

    def make(self, port: int) -> AgentUnderTest:
        """A new process at the port of one that has ended, or is about to start."""
        return member(self._of(port), port, self.balancer.address)

    def coordinator(self, kind: str) -> AgentUnderTest:
        """Return the agent that holds a group of this kind; of those that run, once one does."""

        def holders() -> list[AgentUnderTest]:
            return [agent for agent in self.agents if agent.metric("headrace_groups", kind=kind)]

        until(holders, f"no agent holds a group: kind={kind}")
        return holders()[0]

    def _of(self, port: int) -> Mapping[str, object]:
        zone = self._zones.get(port)
        return self._settings if zone is None else {**self._settings, "broker.rack": zone}

    @staticmethod
    def create_topic(address: str, name: str, partitions: int) -> None:
        """Created."""
        KafkaClients(address).create(name, partitions)

    def topic(self, name: str, partitions: int) -> None:
        """Created, and known to every agent."""
        self.create_topic(self.address, name, partitions)
        for port in self.ports:
            until_shown(f"127.0.0.1:{port}", {VIRTUAL}, name)


def until_shown(address: str, nodes: set[int], topic: str | None = None) -> None:
    """Return when this agent shows these nodes and the topic to clients."""

    def is_shown() -> bool:
        told = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=SECONDS_MAX)
        return told.brokers.keys() == nodes and (topic is None or topic in told.topics)

    until(is_shown, (address, nodes, topic))


@contextmanager
def shared_cluster(settings: Mapping[str, object], count: int, zones: Sequence[str] = ()) -> Iterator[SharedCluster]:
    """Started, with clients that see one node at every agent; afterwards all agents are stopped."""
    with Balancer() as balancer:
        cluster = SharedCluster({**settings, "advertised.shared": "true"}, count, balancer, zones)
        with ThreadPoolExecutor() as pool:
            try:
                list(pool.map(AgentUnderTest.__enter__, cluster.agents))
                for port in cluster.ports:
                    until_shown(f"127.0.0.1:{port}", {VIRTUAL})
                yield cluster
            finally:
                started = [agent for agent in cluster.agents if agent.kafka]
                list(pool.map(lambda agent: agent.__exit__(None, None, None), started))
