"""The offsets and members of a group of any type, and changes of the offsets.

Place: under `headrace groups` and the console; groups.py has committed offsets, share_groups.py those of share groups.
Invariant: start offsets of a share group are changed by its own request; a commit would make another group of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.client.group_members import MemberRow, members_of
from headrace.cli.client.groups import commit_offsets, committed_offsets
from headrace.cli.client.offsets import TopicPartition
from headrace.cli.client.share_groups import alter_share_offsets, describe_share_group, share_progress
from headrace.storage.errors import NotFoundError


class OffsetsOfGroup(NamedTuple):
    """`offsets`: committed ones, or the start offsets of a share group. `change` sets others."""

    offsets: dict[TopicPartition, int]
    members: list[MemberRow]
    change: Callable[[KafkaCluster, str, Mapping[TopicPartition, int]], None]


def offsets_of(cluster: KafkaCluster, group: str, *, must_exist: bool = False) -> OffsetsOfGroup:
    """`must_exist`: NotFoundError if there is nothing of the group. Other errors as `require`."""
    share = cluster.look_again(lambda: describe_share_group(cluster, group))
    if share is not None:
        progress = cluster.look_again(lambda: share_progress(cluster, group))
        offsets = {place: each.start_offset for place, each in progress.items()}
        return OffsetsOfGroup(offsets, share.members, alter_share_offsets)
    committed = cluster.look_again(lambda: committed_offsets(cluster, group))
    members = read_members(cluster, group, has_offsets=bool(committed) or not must_exist)
    return OffsetsOfGroup(committed, members, commit_offsets)


def read_members(cluster: KafkaCluster, group: str, *, has_offsets: bool) -> list[MemberRow]:
    """Return the members of a consumer group; none of a group that only has committed offsets. NotFoundError if it has
    none of those either.
    """
    try:
        return cluster.look_again(lambda: members_of(cluster, group))
    except NotFoundError:
        if not has_offsets:
            raise
        return []
