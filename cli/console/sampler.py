"""Takes a sample of the cluster every few seconds, also while no page is open: charts have a past.

Place: a thread of `headrace console`; samples.py keeps the result.
Invariant: it waits for at least PAUSES times as long as a sample took, so a large cluster is asked less often. Of more
than GROUPS_MAX groups or PARTITIONS_MAX partitions it takes the first by name, and says so.
"""

from __future__ import annotations

import logging
import threading

from headrace.cli.client.groups import committed_offsets, list_groups
from headrace.cli.client.offsets import LATEST, TopicPartition, list_offsets
from headrace.cli.console.agent_metrics import AgentPages
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.samples import Sample, Samples
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)
SAMPLE_SECONDS = 5.0
PAUSES = 9.0
"""The sampler asks for at most a tenth of the time."""
LIMIT_SECONDS = 30.0
GROUPS_MAX = 200
PARTITIONS_MAX = 10_000


class Sampler:
    """`samples` grows while it runs. `problems` are those of the last sample, for the pages."""

    def __init__(self, link: ClusterLink, agents: AgentPages, clock: Clock) -> None:
        self.samples = Samples()
        self.problems: list[str] = []
        self._link, self._agents, self._clock = link, agents, clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def has_agents(self) -> bool:
        """Whether bytes and commit times can be known."""
        return bool(self._agents)

    def start(self) -> None:
        """The first sample is taken at once."""
        self._thread.start()

    def stop(self) -> None:
        """A sample in progress ends by its own limit, and is dropped with the process."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def take(self) -> None:
        """One sample; what goes wrong is in `problems`."""
        problems: list[str] = []
        try:
            with self._link.opened(LIMIT_SECONDS) as cluster:
                ends = _ends(cluster, problems)
                committed = _committed(cluster, problems)
        except HeadraceError as error:
            self.problems = [str(error)]
            return
        counters, failures = self._agents.read()
        self.samples.add(Sample(self._clock.wall_ms(), self._clock.monotonic(), ends, committed, counters))
        self.problems = [*problems, *failures]

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = self._clock.monotonic()
            try:
                self.take()
            except Exception:
                logger.exception("sample failed")
            taken = self._clock.monotonic() - started
            self._stopping.wait(max(SAMPLE_SECONDS - taken, PAUSES * taken))


def _ends(cluster: KafkaCluster, problems: list[str]) -> dict[TopicPartition, int]:
    places = [
        (str(topic.name), int(partition.partition_index))
        for topic in cluster.metadata()
        for partition in topic.partitions
        if not topic.is_internal
    ]
    if len(places) > PARTITIONS_MAX:
        problems.append(f"rates and lags are of the first {PARTITIONS_MAX:,} of {len(places):,} partitions")
    return list_offsets(cluster, dict.fromkeys(places[:PARTITIONS_MAX], LATEST))


def _committed(cluster: KafkaCluster, problems: list[str]) -> dict[str, dict[TopicPartition, int]]:
    groups = list(list_groups(cluster))
    if len(groups) > GROUPS_MAX:
        problems.append(f"lags are of the first {GROUPS_MAX} of {len(groups):,} groups")
    found: dict[str, dict[TopicPartition, int]] = {}
    for group in groups[:GROUPS_MAX]:
        try:
            found[group] = committed_offsets(cluster, group)
        except HeadraceError as error:
            problems.append(f"group {group}: {error}")
    return found
