"""A server, a new topic and a new group for a scenario, and the requests about groups that tools send.

Place: the argument of each scenario.
Invariant: no two scenarios share a topic or a group, so they may run at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.messages import message
from tests.compat.share_scenarios.member import RECORD_LIMIT, REFUSED, RawMember
from tests.compat.share_scenarios.server import Server

Row = tuple[str, str]
"""A step of a scenario, and the server's answer in words."""


class Scene:
    """A new topic of one partition, and a new group that reads from the earliest record with locks of LOCK_MS."""

    LOCK_MS = 15_000
    """Much longer than a scenario, so that no lock ends because the machine is busy."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.group, self.topic = f"group-{uuid.uuid4()}", f"topic-{uuid.uuid4()}"
        self.topic_id = server.create_topic(self.topic)
        self.configure(share_auto_offset_reset="earliest", share_record_lock_duration_ms=str(self.LOCK_MS))

    def configure(self, **configs: str) -> None:
        """Set configs of the group, with underscores in place of dots."""
        self.server.configure_group(self.group, **configs)

    def produce(self, count: int, partition: int = 0) -> None:
        """Write so many records, as one batch."""
        self.server.produce(self.topic, count, partition)

    def member(self, member_id: str | None = None) -> RawMember:
        """Return a member that has not joined."""
        return RawMember(self.server, self.group, self.topic_id, member_id)

    def joined(self, *, record_limit: int | None = None) -> RawMember:
        """Return a member that has joined. `record_limit`: it acquires at most so many records, not batches."""
        member = self.member()
        if record_limit is not None:
            member.max_records, member.acquire_mode = record_limit, RECORD_LIMIT
        member.join(self.topic)
        return member

    def another_topic(self) -> tuple[str, uuid.UUID]:
        """Create a second topic of one partition; its name and id."""
        name = f"other-{uuid.uuid4()}"
        return name, self.server.create_topic(name)

    # -- what tools ask about share groups

    def described(self, topic: str = "", group: str = "") -> str:
        """Return start offset and lag of partition 0."""
        found = self._described(group or self.group, (topic or self.topic,))
        if found.error_code is not ErrorCode.none:
            return REFUSED + _name(found.error_code)
        return " ".join(
            f"start={part.start_offset} lag={part.lag}" if part.error_code is ErrorCode.none else _name(part.error_code)
            for each in found.topics
            for part in each.partitions
        )

    def described_as_a_whole(self, group: str = "") -> str:
        """Return the code, and the number of topics, of a description without a list of topics."""
        found = self._described(group or self.group, None)
        return f"{_name(found.error_code)}, {len(found.topics)} topics"

    def _described(self, group: str, topics: tuple[str, ...] | None) -> Any:
        m = message(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1)
        asked = topics and tuple(
            m.make("DescribeShareGroupOffsetsRequestTopic", topic_name=name, partitions=(0,)) for name in topics
        )
        groups = (m.make("DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=asked),)
        (found,) = self._of_coordinator(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, group, groups=groups).groups
        return found

    def alter(self, offset: int, *, topic: str = "", group: str = "", partition: int = 0) -> str:
        """Set the group's start offset in a partition."""
        m = message(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0)
        changed = m.make("AlterShareGroupOffsetsRequestPartition", partition_index=partition, start_offset=offset)
        topics = (m.make("AlterShareGroupOffsetsRequestTopic", topic_name=topic or self.topic, partitions=(changed,)),)
        of = group or self.group
        answer = self._of_coordinator(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, of, group_id=of, topics=topics)
        if answer.error_code is not ErrorCode.none:
            return REFUSED + _name(answer.error_code)
        return " ".join(_name(part.error_code) for each in answer.responses for part in each.partitions)

    def delete_offsets(self, *, topic: str = "", group: str = "") -> str:
        """Delete the group's offsets of a topic."""
        m = message(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0)
        topics = (m.make("DeleteShareGroupOffsetsRequestTopic", topic_name=topic or self.topic),)
        of = group or self.group
        answer = self._of_coordinator(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, of, group_id=of, topics=topics)
        if answer.error_code is not ErrorCode.none:
            return REFUSED + _name(answer.error_code)
        return " ".join(_name(each.error_code) for each in answer.responses)

    def delete_group(self, group: str = "") -> str:
        """Delete the group."""
        of = group or self.group
        (answer,) = self._of_coordinator(ApiKey.DELETE_GROUPS, 2, of, groups_names=(of,)).results
        return _name(answer.error_code)

    def listed(self, group: str = "") -> str:
        """Return the group's type and state in the list of groups."""
        of = group or self.group
        answer = self._of_coordinator(ApiKey.LIST_GROUPS, 5, of, states_filter=(), types_filter=())
        states = [f"{each.group_type} {each.group_state}" for each in answer.groups if each.group_id == of]
        return " ".join(states) or "not listed"

    def _of_coordinator(self, api_key: int, version: int, group: str, **values: Any) -> Any:
        return self.server.ask(api_key, version, to=self.server.coordinator(group), **values)

    # -- requests of other types of groups

    def consumer_joins(self, group: str) -> str:
        """Join as a member of a consumer group."""
        return self._consumer_heartbeat(group, 0, topics=(self.topic,))

    def consumer_leaves(self, group: str) -> str:
        """End the membership of `consumer_joins`."""
        return self._consumer_heartbeat(group, -1)

    def _consumer_heartbeat(self, group: str, epoch: int, topics: tuple[str, ...] | None = None) -> str:
        answer = self._of_coordinator(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group,
            group_id=group, member_id=group, member_epoch=epoch, instance_id=None, rack_id=None,
            rebalance_timeout=timedelta(minutes=1), subscribed_topic_names=topics, subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=() if topics else None,
        )  # fmt: skip
        return _name(answer.error_code)

    def commit_as_consumer(self, group: str) -> str:
        """Commit an offset as tools do, without a member."""
        m = message(ApiKey.OFFSET_COMMIT, 9)
        partition = m.make(
            "OffsetCommitRequestPartition",
            partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        topics = (m.make("OffsetCommitRequestTopic", name=self.topic, partitions=(partition,)),)
        answer = self._of_coordinator(
            ApiKey.OFFSET_COMMIT, 9, group,
            group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics,
        )  # fmt: skip
        return _name(answer.topics[0].partitions[0].error_code)

    def fetch_as_consumer(self, group: str) -> str:
        """Read committed offsets."""
        answer = self._of_coordinator(ApiKey.OFFSET_FETCH, 7, group, group_id=group, topics=None, require_stable=False)
        return _name(answer.error_code)

    def describe_as_consumer(self, group: str) -> str:
        """Describe it as a consumer group."""
        (found,) = self._of_coordinator(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group, group_ids=(group,), include_authorized_operations=False
        ).groups
        return _name(found.error_code)


Scenario = Callable[[Scene], Iterator[Row]]


def _name(code: int) -> str:
    return ErrorCode(code).name.upper()
