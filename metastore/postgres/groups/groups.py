"""The durable part of consumer groups: coordinator, saved state, committed offsets.

Place: under agent/groups; implements GroupApi.
Invariant: every write of a coordinator names its epoch, and a claim by another agent raises it
first: an old coordinator cannot overwrite what the new one read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.metastore.api.groups import (
    CommittedOffset,
    GroupApi,
    GroupClaim,
    GroupKind,
    GroupRecord,
    ShareState,
    StoredSharePartition,
    StoredShareState,
)
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.share_states import GroupProgress
from headrace.storage.errors import FencedError

_CLAIM_GROUP = Statement("claim_group", writes=True)
_RELEASE_GROUPS = Statement("release_groups", writes=True)
_SAVE_GROUP = Statement("save_group", writes=True)
_DELETE_GROUP = Statement("delete_group", writes=True)
_COMMIT_OFFSETS = Statement("commit_group_offsets", writes=True)
_FETCH_OFFSETS = Statement("fetch_group_offsets", writes=False)
_DELETE_OFFSETS = Statement("delete_group_offsets", writes=True)
_STORE_SHARES = Statement("store_share_partitions", writes=True)
_SHARE_STATES = Statement("share_states", writes=False)


class PostgresGroups(PostgresNoun):
    """The group operations of PostgresMetastore."""

    list_groups = calls(GroupApi.list_groups, writes=False, by_readers=True)
    parent_positions = calls(GroupApi.parent_positions, writes=False, by_readers=True)
    load_share_partitions = calls(GroupApi.load_share_partitions, writes=False, by_readers=True)

    async def claim_group(self, group_id: str, node_id: int, broker_epoch: int) -> GroupClaim | None:
        refusal, epoch, *saved = await _CLAIM_GROUP.row(
            self.pool, group_id=group_id, node_id=node_id, broker_epoch=broker_epoch
        )
        if refusal == "agent":
            raise FencedError(
                f"agent may not coordinate: group={group_id} node_id={node_id} broker_epoch={broker_epoch}"
            )
        if refusal == "held":
            return None
        kind, state, protocol_type, subscribed, data = saved
        if not data:
            return GroupClaim(epoch, None)
        topics = None if subscribed is None else tuple(subscribed)
        return GroupClaim(epoch, GroupRecord(GroupKind(kind), state, protocol_type, topics, data))

    async def release_groups(self, claims: Mapping[str, int]) -> None:
        await _RELEASE_GROUPS.row(self.pool, group_ids=list(claims), coordinator_epochs=list(claims.values()))

    async def save_group(self, group_id: str, coordinator_epoch: int, record: GroupRecord) -> None:
        rows = await _SAVE_GROUP.rows(
            self.pool,
            group_id=group_id,
            coordinator_epoch=coordinator_epoch,
            kind=record.kind.value,
            state=record.state,
            protocol_type=record.protocol_type,
            subscribed=None if record.subscribed is None else list(record.subscribed),
            saved=record.data,
        )
        if not rows:
            raise _claimed_since(group_id, coordinator_epoch)

    async def delete_group(self, group_id: str, coordinator_epoch: int) -> bool:
        (existed,) = await _DELETE_GROUP.row(self.pool, group_id=group_id, coordinator_epoch=coordinator_epoch)
        if existed is None:
            raise _claimed_since(group_id, coordinator_epoch)
        return bool(existed)

    async def commit_offsets(
        self, group_id: str, coordinator_epoch: int, offsets: Sequence[CommittedOffset]
    ) -> list[bool]:
        """The last position counts where a partition is named twice."""
        asked = [offset.partition_key for offset in offsets]
        latest = {offset.partition_key: offset for offset in offsets}
        ordered = [latest[key] for key in sorted(latest)]
        (known,) = await _COMMIT_OFFSETS.row(
            self.pool,
            group_id=group_id,
            coordinator_epoch=coordinator_epoch,
            keys=[offset.partition_key for offset in ordered],
            offsets=[offset.offset for offset in ordered],
            leader_epochs=[offset.leader_epoch for offset in ordered],
            metadata=[offset.metadata.encode() for offset in ordered],
        )
        if known is None:
            raise _claimed_since(group_id, coordinator_epoch)
        stored = set(known)
        return [key in stored for key in asked]

    async def fetch_offsets(self, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
        keys = None if partition_keys is None else list(partition_keys)
        rows = await _FETCH_OFFSETS.rows(self.readers, group_id=group_id, keys=keys)
        return [
            CommittedOffset(key, offset, epoch, text.decode(), pending) for key, offset, epoch, text, pending in rows
        ]

    async def delete_offsets(self, group_id: str, coordinator_epoch: int, partition_keys: Sequence[int]) -> None:
        (done,) = await _DELETE_OFFSETS.row(
            self.pool, group_id=group_id, coordinator_epoch=coordinator_epoch, keys=list(partition_keys)
        )
        if not done:
            raise _claimed_since(group_id, coordinator_epoch)

    async def store_share_partitions(
        self, group_id: str, coordinator_epoch: int, revision: int, partitions: Sequence[StoredSharePartition]
    ) -> list[bool]:
        asked, ordered = [each.partition_key for each in partitions], sorted(partitions)
        (known,) = await _STORE_SHARES.row(
            self.pool,
            group_id=group_id,
            coordinator_epoch=coordinator_epoch,
            revision=revision,
            keys=[each.partition_key for each in ordered],
            starts=[each.start_offset for each in ordered],
            kept=[each.kept for each in ordered],
        )
        if known is None:
            raise _claimed_since(group_id, coordinator_epoch)
        stored = set(known)
        return [key in stored for key in asked]

    async def share_states(self, after: tuple[str, int], most: int) -> list[StoredShareState]:
        rows = await _SHARE_STATES.rows(self.readers, group_id=after[0], partition_key=after[1], most=most)
        return [
            StoredShareState(ShareState(*row[:7]), row[7], None if row[7] is None else GroupProgress(row[8], row[9]))
            for row in rows
        ]


def _claimed_since(group_id: str, coordinator_epoch: int) -> FencedError:
    return FencedError(f"group has another coordinator: group={group_id} coordinator_epoch={coordinator_epoch}")
