"""Two agents that coordinate groups on fake metastores, and clients that call their handlers."""

from __future__ import annotations

import random
from typing import Any

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import TxnOffsetCommitRequest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.apis.all_apis import COORDINATOR_ROWS
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.serve.groups import compose_groups
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.protocol.request import Request, Response
from headrace.storage.clock import Clock
from load.contexts import a_context
from tests.agent.client_calls import call
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.manual_clock import ManualClock
from tests.nouns import nouns


class Coordinating:
    """One agent with its group handlers."""

    def __init__(self, cluster: Cluster, groups: Metastore, clock: Clock, seed: int) -> None:
        self.cluster = cluster
        settings = Settings(group_initial_rebalance_delay_ms=0, offset_metadata_max_bytes=20)
        self.registry = CollectorRegistry()
        self.requests = compose_groups(
            a_context(groups, clock, settings=settings, rng=random.Random(seed), registry=self.registry), cluster
        )
        self.handlers = {api_key: row.handler(self.requests) for api_key, row in COORDINATOR_ROWS.items()}

    async def join(self, group: str, member_id: str = "", *, version: int = 5, **more: Any) -> Any:
        message = JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            session_timeout_ms=more.pop("session_timeout_ms", 10_000),
            rebalance_timeout_ms=60_000,
            group_instance_id=more.pop("instance_id", None),
            protocol_type=more.pop("protocol_type", "consumer"),
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=more.pop("metadata", b"topics"))
            ],
            **more,
        )
        return await call(self.handlers[11], message, version)

    async def only_member(self, group: str = "g", *, version: int = 3, **joining: Any) -> str:
        """Join alone and be assigned `all`; the member's id. Its generation is 1."""
        joined = await self.join(group, version=version, **joining)
        if joined.error_code == ErrorCode.member_id_required:
            joined = await self.join(group, joined.member_id, version=version, **joining)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        synced = await self.sync(group, joined.member_id, 1, {joined.member_id: b"all"}, version=min(version, 5))
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return str(joined.member_id)

    async def sync(
        self, group: str, member_id: str, generation: int, assignments: dict[str, bytes], *, version: int = 3
    ) -> Any:
        message = SyncGroupRequest(
            group_id=group,
            member_id=member_id,
            generation_id=generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in assignments.items()
            ],
        )
        return await call(self.handlers[14], message, version)

    async def heartbeat(self, group: str, member_id: str, generation: int, *, version: int = 3) -> int:
        message = HeartbeatRequest(group_id=group, member_id=member_id, generation_id=generation)
        return int((await call(self.handlers[12], message, version)).error_code)

    async def leave(self, group: str, member_id: str, *, version: int = 2) -> Any:
        member = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None)
        message = LeaveGroupRequest(group_id=group, member_id=member_id, members=[member])
        return await call(self.handlers[13], message, version)

    async def commit(
        self, group: str, topics: dict[Any, dict[int, int]], *, version: int = 6, metadata: str = "m", **member: Any
    ) -> Any:
        """`topics`: name (or id, from version 10) -> partition -> offset. The answer's codes in the same form."""
        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        partition_class = topic_class.OffsetCommitRequestPartition
        message = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=member.get("generation", -1),
            member_id=member.get("member_id", ""),
            topics=[
                topic_class(
                    **{"topic_id" if version >= 10 else "name": topic},
                    partitions=[
                        partition_class(
                            partition_index=index,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                        for index, offset in partitions.items()
                    ],
                )
                for topic, partitions in topics.items()
            ],
        )
        answer = await call(self.handlers[8], message, version)
        return {
            t.topic_id if version >= 10 else t.name: {p.partition_index: p.error_code for p in t.partitions}
            for t in answer.topics
        }

    async def commit_pending(
        self, group: str, topic: str, offset: int, *, version: int = 5, epoch: int = 0, **member: Any
    ) -> int:
        """TxnOffsetCommit of one partition by producer 7; its code."""
        topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic_class.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m"
        )
        message = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=7,
            producer_epoch=epoch,
            generation_id=member.get("generation", -1),
            member_id=member.get("member_id", ""),
            topics=[topic_class(name=topic, partitions=[partition])],
        )
        answer = await call(self.handlers[28], message, version)
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch(self, group: str, topics: dict[Any, list[int]] | None, *, version: int = 5) -> Any:
        """(the group's code, name or id -> partition -> (offset, leader epoch, metadata, code))."""
        many = OffsetFetchRequest.OffsetFetchRequestGroup
        named = "topic_id" if version >= 10 else "name"
        classes = {False: OffsetFetchRequest.OffsetFetchRequestTopic, True: many.OffsetFetchRequestTopics}
        asked = None
        if topics is not None:
            asked = [classes[version >= 8](**{named: t}, partition_indexes=p) for t, p in topics.items()]
        if version >= 8:
            message = OffsetFetchRequest(groups=[many(group_id=group, topics=asked)], require_stable=True)
        else:
            message = OffsetFetchRequest(group_id=group, topics=asked, require_stable=True)
        answer = await call(self.handlers[9], message, version)
        found = answer.groups[0] if version >= 8 else answer
        return found.error_code if version >= 2 else None, {
            getattr(t, named): {
                p.partition_index: (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
                for p in t.partitions
            }
            for t in found.topics
        }


class Front:
    """An agent's handlers behind the one method that requests come in by."""

    def __init__(self, agent: Coordinating) -> None:
        self._handlers = agent.handlers

    async def handle(self, request: Request) -> Response:
        response = await self._handlers[request.api_key](request)
        assert isinstance(response, Response)
        return response


class GroupsWorld:
    """Agents 1 and 2, started; `home` is the one that coordinates the group `g`, `other` the other."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.cluster_api = FakeClusterApi(clock)
        self.groups = FakeGroupApi(self._is_live)
        self.agents = [
            Coordinating(an_agent(self.cluster_api, node_id, seed=node_id), nouns(self.groups), clock, node_id)
            for node_id in (1, 2)
        ]

    async def start(self) -> None:
        for agent in self.agents:
            await self.clock.run(agent.cluster.start())
        await self.catch_up()

    async def catch_up(self) -> None:
        for agent in self.agents:
            await agent.cluster.catch_up()

    async def stop(self) -> None:
        for agent in self.agents:
            await agent.requests.close()
            await self.clock.run(agent.cluster.stop())

    def _is_live(self, node_id: int, broker_epoch: int) -> bool:
        agent = self.cluster_api.agents.get(node_id)
        return agent is not None and agent.epoch == broker_epoch and not agent.fenced

    @property
    def home(self) -> Coordinating:
        return self.coordinator("g")

    @property
    def other(self) -> Coordinating:
        return next(a for a in self.agents if a is not self.home)

    def coordinator(self, group: str) -> Coordinating:
        """The agent that coordinates the group, as the first agent sees it."""
        found = self.agents[0].cluster.coordinator(group)
        assert found is not None
        return next(a for a in self.agents if a.cluster.node_id == found.node_id)
