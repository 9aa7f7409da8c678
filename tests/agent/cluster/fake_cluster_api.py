"""ClusterApi in memory, with the real records in its log.

Fault model: `fail_before[operation]` are raised before the operation does anything, one per call;
`fail_after[operation]` after it was done, so its answer is lost. `before_append` runs just before a
compare-and-append looks at the head: another agent that is quicker. Time is the test's clock. Leases
run out as in metastore/api/; the active controller fences, and `controller_epoch` fences its calls.
`truncate` drops the log's beginning; its records keep their offsets.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.metastore.api.agents import AgentRegistration, FeatureRange, HeartbeatAnswer, Listener, RegisteredAgent
from headrace.metastore.api.controller import ControllerLease, SnapshotState
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.metadata_log import StoredSnapshot
from headrace.metastore.api.reports import JobCount
from headrace.metastore.api.retention import OldestExtents, OldestQuery
from headrace.metastore.api.settings import SettingProposals
from headrace.metastore.api.splits import Doubling, QuietSplit, ReadingGroup
from headrace.metastore.api.topics import CountChange, NewTopic, PartitionGrowth, RemovalOutcome
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.partition_records import change_records, encode_new_partitions, split_record
from headrace.metastore.log.records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControlledShutdownRecord,
    FenceBrokerRecord,
    HideBrokerRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ShowBrokerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    encode_record,
)
from headrace.metastore.log.replay import apply
from headrace.metastore.partitions.changes import Removal
from headrace.metastore.partitions.topic_partitions import Split
from headrace.storage.errors import AlreadyExistsError, FencedError, HeadraceError, InvalidError, TruncatedError
from tests.manual_clock import ManualClock

FIRST_LEASED_NODE_ID = 1_000
MAX_LAG = 100
NO_PROPOSALS = SettingProposals({}, {}, 0)
_NONE: Mapping[str, FeatureRange] = MappingProxyType({})
NOBODY = ControllerLease(-1, 0, is_own=False)


@dataclass
class _Agent:
    registration: AgentRegistration
    epoch: int
    fenced: bool
    held_until: float
    offset: int = 0
    leaving_offset: int | None = None
    hidden: bool = False
    hidden_before: bool = False
    heard_at: float = 0.0

    @property
    def is_member(self) -> bool:
        return not self.fenced and self.leaving_offset is None


@dataclass
class FakeClusterApi:
    """One metastore; share it between the agents of a test."""

    clock: ManualClock
    log: list[bytes] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    fail_before: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    fail_after: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    before_append: Callable[[], None] | None = None
    agents: dict[int, _Agent] = field(default_factory=dict)
    topics: dict[uuid.UUID, str] = field(default_factory=dict)
    """Names of those that were created here."""
    next_producer_id: int = 0
    log_start: int = 0
    snapshots: list[StoredSnapshot] = field(default_factory=list)
    snapshot_at: float = 1000.0
    controller: ControllerLease = NOBODY
    controller_incarnation: uuid.UUID | None = None
    controller_until: float = 0.0
    proposals: SettingProposals = NO_PROPOSALS
    session_seconds: float = 18.0
    """The lease of a registration, until its first heartbeat."""
    cluster_values: dict[str, str | None] = field(default_factory=dict)
    scheduled: list[list[str]] = field(default_factory=list)
    job_counts: list[JobCount] = field(default_factory=list)
    """The kinds of each call."""
    empty_partitions: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    readers: list[ReadingGroup] = field(default_factory=list)
    due_splits: list[QuietSplit] = field(default_factory=list)
    """(topic id, index) of partitions without records: a marked one of them may be removed."""
    latency: float = 0.0
    """Seconds of the test's clock that each call takes, before anything is done."""

    # -- what tests do by hand

    def append(self, *records: MetadataRecord) -> int:
        """Append; the offset of the first record."""
        self.log.extend(encode_record(record) for record in records)
        for record in records:
            if isinstance(record, ConfigRecord) and (record.resource_type, record.resource_name) == (
                BROKER_RESOURCE,
                "",
            ):
                self.cluster_values[record.name] = record.value
        return len(self.log) - len(records)

    def add_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> uuid.UUID:
        topic_id = uuid.uuid4()
        self._append_topic(NewTopic(name, topic_id, partitions, configs or {}))
        return topic_id

    def add_partitions(
        self, topic_id: uuid.UUID, first_index: int, count: int, preferred: Sequence[Sequence[int]] = ()
    ) -> None:
        """Partitions `first_index` to `count - 1`."""
        self.log.extend(encode_new_partitions(topic_id, range(first_index, count), preferred, leader_epoch=0))

    def add_agent(
        self,
        node_id: int,
        rack: str | None = None,
        host: str = "agent",
        listeners: Sequence[Listener] = (),
        features: Mapping[str, FeatureRange] = _NONE,
    ) -> None:
        """Another agent, registered and unfenced, that never goes silent."""
        first = listeners[0] if listeners else Listener("PLAINTEXT", f"{host}-{node_id}", 9092, 0)
        registration = AgentRegistration(
            node_id, uuid.uuid4(), first.host, first.port, rack, features=features, listeners=tuple(listeners)
        )
        epoch = self._append_registration(node_id, registration)
        self.append(UnfenceBrokerRecord(broker_id=node_id, broker_epoch=epoch))
        self.agents[node_id] = _Agent(registration, epoch, False, float("inf"), offset=2**62)

    def truncate(self, start: int) -> None:
        """Forget the records below `start`."""
        self.log_start = start
        self.log[:start] = [b""] * start

    # -- ClusterApi

    async def metadata_head(self) -> int:
        await self._begin("metadata_head")
        return len(self.log)

    async def metadata_log_start(self) -> int:
        return self.log_start

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        await self._begin("read_metadata")
        if start_offset < self.log_start:
            raise TruncatedError(f"log starts later: asked={start_offset} kept={self.log_start}")
        return self.log[start_offset : start_offset + limit]

    async def newest_snapshot(self) -> StoredSnapshot | None:
        await asyncio.sleep(0)
        return self.snapshots[-1] if self.snapshots else None

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        await self._begin("append_records")
        if controller_epoch is not None:
            self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        self.append(*records)
        self._end("append_records")
        return True

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        await self._begin("create_topics")
        if not self._compare(expected_head):
            return False
        if taken := {topic.name for topic in topics} & set(self.topics.values()):
            raise AlreadyExistsError(f"topic exists: names={sorted(taken)}")
        for topic in topics:
            self._append_topic(topic)
        self._end("create_topics")
        return True

    async def delete_topics(self, expected_head: int, topic_ids: Sequence[uuid.UUID]) -> bool:
        await self._begin("delete_topics")
        if not self._compare(expected_head):
            return False
        if unknown := set(topic_ids) - self.topics.keys():
            raise InvalidError(f"a topic is not there: topic_ids={unknown}")
        for topic_id in topic_ids:
            del self.topics[topic_id]
        self.append(*(RemoveTopicRecord(topic_id=topic_id) for topic_id in topic_ids))
        self._end("delete_topics")
        return True

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        await self._begin("create_partitions")
        if not self._compare(expected_head):
            return False
        for growth in growths:
            self.add_partitions(*growth)
        self._end("create_partitions")
        return True

    async def change_partition_counts(self, expected_head: int, changes: Sequence[CountChange]) -> bool:
        await self._begin("change_partition_counts")
        if not self._compare(expected_head):
            return False
        self.append(*(record for change in changes for record in change_records(*change)))
        self._end("change_partition_counts")
        return True

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        await self._begin("remove_partition")
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return RemovalOutcome.HEAD_MOVED
        if (topic_id, removal.partition) not in self.empty_partitions:
            return RemovalOutcome.NOT_EMPTY
        self.append(*change_records(topic_id, -1, removal))
        self._end("remove_partition")
        return RemovalOutcome.REMOVED

    async def double_topic(self, expected_head: int, doubling: Doubling) -> bool:
        await self._begin("double_topic")
        if not self._compare(expected_head):
            return False
        topic_id, initial, count, change, *_ = doubling
        self.append(*change_records(topic_id, initial, change))
        self.append(*(split_record(topic_id, parent, Split(parent + count)) for parent in range(count)))
        self._end("double_topic")
        return True

    async def agents_behind(self, offset: int) -> list[int]:
        await self._begin("agents_behind")
        return [node_id for node_id, agent in self.agents.items() if not agent.fenced and agent.offset < offset]

    async def topic_readers(self, topic_id: uuid.UUID) -> list[ReadingGroup]:
        """Of `readers`."""
        return self.readers

    async def quiet_splits(self, limit: int) -> Sequence[QuietSplit]:
        """Of `due_splits`."""
        return self.due_splits[:limit]

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        self.due_splits.remove(split)
        parent, child = (split_partition_key(key)[1] for key in (split.parent_key, split.child_key))
        self.append(split_record(split.topic_id, parent, Split(child, split.high_watermark)))
        return True

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        """Of partitions, log start and high watermark are what the controller looks at."""
        await self._begin("oldest_extents")
        empty = {self.image.topics_by_id[topic_id].key(index) for topic_id, index in self.empty_partitions}
        heads = [(query.partition_key, 0 if query.partition_key in empty else 9) for query in queries]
        return 0, [OldestExtents(key, True, 0, head, 0, False, []) for key, head in heads]

    @property
    def image(self) -> MetadataImage:
        """What the log says, as of its head."""
        return apply(MetadataImage(), self.log)

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        await self._begin("register_agent")
        node_id = registration.node_id
        for known, agent in self.agents.items():
            if agent.registration.incarnation_id == registration.incarnation_id:
                return RegisteredAgent(known, agent.epoch)
        if node_id is None:
            node_id = next(n for n in range(FIRST_LEASED_NODE_ID, 2_000) if n not in self.agents)
        holder = self.agents.get(node_id)
        if holder is not None and self.clock.monotonic() < holder.held_until:
            raise AlreadyExistsError(f"another incarnation holds the node id: node_id={node_id}")
        epoch = self._append_registration(node_id, registration)
        self.agents[node_id] = _Agent(registration, epoch, True, self.clock.monotonic() + self.session_seconds)
        self._end("register_agent")
        return RegisteredAgent(node_id, epoch)

    async def heartbeat(
        self,
        node_id: int,
        broker_epoch: int,
        *,
        metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool = False,
        session_timeout_ms: int,
    ) -> HeartbeatAnswer:
        await self._begin("heartbeat")
        agent = self.agents.get(node_id)
        if agent is None or agent.epoch != broker_epoch:
            raise FencedError(f"stale broker epoch: node_id={node_id} broker_epoch={broker_epoch}")
        now, granted_ms = self.clock.monotonic(), self._granted_ms("broker.session.timeout.ms", session_timeout_ms)
        agent.held_until = max(agent.held_until, now + max(granted_ms, session_timeout_ms) / 1000)
        agent.offset = metadata_offset
        is_caught_up = broker_epoch < metadata_offset <= len(self.log) and len(self.log) - metadata_offset <= MAX_LAG
        others = [a for n, a in self.agents.items() if n != node_id and not a.fenced and a.leaving_offset is None]
        if want_shut_down and others and not agent.fenced and agent.leaving_offset is None:
            agent.leaving_offset = len(self.log)
            self.append(ControlledShutdownRecord(broker_id=node_id, broker_epoch=broker_epoch))
        elif want_fence or (is_caught_up and not want_shut_down):
            self._set_fenced(node_id, want_fence)
        if agent.hidden and agent.is_member:
            agent.hidden = False
            self.append(ShowBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))
        agent.heard_at = now
        self._end("heartbeat")
        leaving = agent.leaving_offset
        waits = leaving is not None and any(other.offset <= leaving for other in others)
        return HeartbeatAnswer(
            is_caught_up=is_caught_up,
            is_fenced=agent.fenced,
            should_shut_down=want_shut_down and (agent.fenced or not waits),
            metadata_head=len(self.log),
            controller_id=self.controller.controller_id,
            session_timeout_ms=granted_ms,
        )

    def _granted_ms(self, name: str, asked_ms: int) -> int:
        value = self.cluster_values.get(name)
        return asked_ms if value is None else int(value)

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        await self._begin("unregister_agent")
        if node_id in self.agents and self.agents[node_id].epoch == broker_epoch:
            del self.agents[node_id]
            self.append(UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))

    # -- ControllerApi

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        await self._begin("hold_controller_lease")
        now = self.clock.monotonic()
        if self.controller_incarnation != incarnation_id and now >= self.controller_until:
            self.controller_incarnation = incarnation_id
            self.controller = ControllerLease(controller_id, self.controller.controller_epoch + 1, is_own=False)
            self.controller_until = 0.0
        is_own = self.controller_incarnation == incarnation_id
        value = self.cluster_values.get("controller.lease.ms")
        granted_ms = lease_ms if value is None else int(value) * 2 // 3
        if is_own:
            self.controller_until = max(self.controller_until, now + max(granted_ms, lease_ms) / 1000)
        self._end("hold_controller_lease")
        return self.controller._replace(is_own=is_own, lease_ms=granted_ms)

    async def succeed_controller(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int, gone_epoch: int
    ) -> ControllerLease:
        await self._begin("succeed_controller")
        if self.controller.controller_epoch == gone_epoch and self.controller_incarnation != incarnation_id:
            self.controller_until = 0.0
        return await self.hold_controller_lease(controller_id, incarnation_id, lease_ms)

    async def setting_proposals(self) -> SettingProposals:
        await self._begin("setting_proposals")
        return self.proposals

    async def describe_controller(self) -> ControllerLease | None:
        return self.controller if self.clock.monotonic() < self.controller_until else None

    async def resign_controller(self, controller_epoch: int) -> None:
        await self._begin("resign_controller")
        if controller_epoch == self.controller.controller_epoch:
            self.controller_until = 0.0

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        await self._begin("fence_silent_agents")
        self._require_controller(controller_epoch)
        silent = [
            node_id
            for node_id, agent in self.agents.items()
            if not agent.fenced and self.clock.monotonic() >= agent.held_until
        ]
        for node_id in silent:
            self._set_fenced(node_id, True)
        return silent

    async def hide_agent(
        self, controller_epoch: int, node_id: int, broker_epoch: int, *, session_timeout_ms: int
    ) -> bool:
        await self._begin("hide_agent")
        self._require_controller(controller_epoch)
        agent = self.agents.get(node_id)
        if agent is None or agent.epoch != broker_epoch or not agent.is_member or agent.hidden:
            return False
        recent = self.clock.monotonic() - session_timeout_ms / 3000
        if agent.hidden_before and agent.heard_at > recent:
            return False
        members = [other for other in self.agents.values() if other.is_member]
        if 2 * (sum(other.hidden for other in members) + 1) > len(members):
            return False
        agent.hidden = agent.hidden_before = True
        self.append(HideBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))
        return True

    async def snapshot_state(self) -> SnapshotState:
        end = self.snapshots[-1].end_offset if self.snapshots else 0
        age = self.clock.monotonic() - self.snapshot_at
        return SnapshotState(end, int(age * 1000), len(self.log) - end, sum(map(len, self.log[end:])))

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        await self._begin("save_snapshot")
        self._require_controller(controller_epoch)
        if not 1 <= snapshot.end_offset <= len(self.log):
            raise InvalidError(f"a snapshot of what is not in the log: end_offset={snapshot.end_offset}")
        self.snapshots = [*self.snapshots, snapshot][-2:]
        self.snapshot_at = self.clock.monotonic()

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        self._require_controller(controller_epoch)
        keep_from = self.snapshots[0].end_offset - 1 if len(self.snapshots) == 2 else 0
        dropped = min(max(keep_from - self.log_start, 0), limit)
        self.truncate(self.log_start + dropped)
        return dropped

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        await self._begin("schedule_jobs")
        self._require_controller(controller_epoch)
        self.scheduled.append([schedule.kind for schedule in schedules])
        self._end("schedule_jobs")

    async def count_jobs(self) -> list[JobCount]:
        return self.job_counts

    # -- the part of CommitApi that hands out producer ids

    async def allocate_producer_ids(self, count: int) -> range:
        await self._begin("allocate_producer_ids")
        self.next_producer_id += count
        self._end("allocate_producer_ids")
        return range(self.next_producer_id - count, self.next_producer_id)

    # -- insides

    async def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.latency:
            await self.clock.sleep(self.latency)
        else:
            await asyncio.sleep(0)
        if self.fail_before[operation]:
            raise self.fail_before[operation].pop(0)

    def _end(self, operation: str) -> None:
        if self.fail_after[operation]:
            raise self.fail_after[operation].pop(0)

    def _compare(self, expected_head: int) -> bool:
        if self.before_append is not None:
            racer, self.before_append = self.before_append, None
            racer()
        return expected_head == len(self.log)

    def _require_controller(self, controller_epoch: int) -> None:
        if controller_epoch != self.controller.controller_epoch:
            raise FencedError(f"stale controller epoch: controller_epoch={controller_epoch}")

    def _append_topic(self, topic: NewTopic) -> None:
        count = topic.partition_count
        self.topics[topic.topic_id] = topic.name
        self.append(
            TopicRecord(
                topic_name=topic.name,
                topic_id=topic.topic_id,
                initial_partition_count=count,
                undeleted_partition_count=count,
            )
        )
        self.add_partitions(topic.topic_id, 0, count, topic.preferred)
        self.append(
            *(
                ConfigRecord(resource_type=2, resource_name=topic.name, name=name, value=value)
                for name, value in topic.configs.items()
            ),
        )

    def _append_registration(self, node_id: int, registration: AgentRegistration) -> int:
        listeners = registration.listeners or (Listener("CLIENT", registration.host, registration.port, 0),)
        endpoints = tuple(
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in listeners
        )
        epoch = len(self.log)
        self.append(
            RegisterBrokerRecord(
                broker_id=node_id,
                incarnation_id=registration.incarnation_id,
                broker_epoch=epoch,
                end_points=endpoints,
                features=tuple(
                    BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
                    for name, levels in registration.features.items()
                ),
                rack=registration.rack,
            )
        )
        return epoch

    def _set_fenced(self, node_id: int, fenced: bool) -> None:
        agent = self.agents[node_id]
        if agent.fenced != fenced:
            agent.fenced = fenced
            agent.hidden = agent.hidden and not fenced
            record = FenceBrokerRecord if fenced else UnfenceBrokerRecord
            self.append(record(broker_id=node_id, broker_epoch=agent.epoch))
