"""The durable part of consumer groups: who coordinates, what it saved, where consumers are.

Place: under agent/groups; implements GroupApi.
Invariant: every write of a coordinator names its epoch, and a claim by another agent raises it
first: an old coordinator cannot overwrite what the new one read.
If the process dies here, the next coordinator claims the group and reads what was saved last.
"""

from __future__ import annotations

from collections.abc import Sequence

from metastore.postgres.statement import Pool, Statement
from metastore.values import CommittedOffset
from storage.errors import FencedError

_CLAIM_GROUP = Statement("claim_group", writes=True)
_SAVE_GROUP = Statement("save_group", writes=True)
_COMMIT_OFFSETS = Statement("commit_group_offsets", writes=True)
_FETCH_OFFSETS = Statement("fetch_group_offsets", writes=False)


async def claim_group(pool: Pool, group_id: str, node_id: int, broker_epoch: int) -> tuple[int, bytes]:
    """(coordinator epoch, saved state); FencedError unless the agent is registered so and unfenced."""
    rows = await _CLAIM_GROUP.rows(pool, group_id=group_id, node_id=node_id, broker_epoch=broker_epoch)
    if not rows:
        raise FencedError(f"agent may not coordinate: group={group_id} node_id={node_id} broker_epoch={broker_epoch}")
    coordinator_epoch, state = rows[0]
    return coordinator_epoch, state


async def save_group(pool: Pool, group_id: str, coordinator_epoch: int, state: bytes) -> None:
    """FencedError when the group was claimed since."""
    rows = await _SAVE_GROUP.rows(pool, group_id=group_id, coordinator_epoch=coordinator_epoch, state=state)
    if not rows:
        raise _claimed_since(group_id, coordinator_epoch)


async def commit_offsets(
    pool: Pool, group_id: str, coordinator_epoch: int | None, offsets: Sequence[CommittedOffset]
) -> list[bool]:
    """Which of the positions were stored. The last one counts where a partition is named twice."""
    latest = {offset.partition_key: offset for offset in offsets}
    ordered = [latest[key] for key in sorted(latest)]
    (known,) = await _COMMIT_OFFSETS.row(
        pool,
        group_id=group_id,
        coordinator_epoch=coordinator_epoch,
        keys=[offset.partition_key for offset in ordered],
        offsets=[offset.offset for offset in ordered],
        leader_epochs=[offset.leader_epoch for offset in ordered],
        metadata=[offset.metadata for offset in ordered],
    )
    if known is None:
        raise _claimed_since(group_id, coordinator_epoch)
    stored = set(known)
    return [offset.partition_key in stored for offset in offsets]


async def fetch_offsets(pool: Pool, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
    """Stored positions of partitions that are there, by partition key."""
    keys = None if partition_keys is None else list(partition_keys)
    rows = await _FETCH_OFFSETS.rows(pool, group_id=group_id, keys=keys)
    return [CommittedOffset(*row) for row in rows]


def _claimed_since(group_id: str, coordinator_epoch: int | None) -> FencedError:
    return FencedError(f"group has another coordinator: group={group_id} coordinator_epoch={coordinator_epoch}")
