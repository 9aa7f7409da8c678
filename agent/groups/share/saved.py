"""A share group's members as they are stored.

Place: written by each change of membership.py, read when an agent becomes the coordinator.
Invariant: fields are added with defaults, never renumbered; an unknown format is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.agent.groups.saved_format import decode_saved
from headrace.agent.groups.share.share_values import ShareMember
from headrace.metastore.api.groups import GroupKind, GroupRecord

FORMAT = 1
PROTOCOL_TYPE = "share"


class _SavedMember(msgspec.Struct, frozen=True):
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: list[str]
    epoch: int
    previous_epoch: int
    assigned: list[int]


class SavedShareGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined."""

    group_epoch: int
    target_epoch: int
    state_name: str
    members: list[_SavedMember]
    format: int = FORMAT

    def record(self) -> GroupRecord:
        """Return it as the metastore keeps it, and what it may tell without opening it."""
        names = sorted({name for member in self.members for name in member.topic_names})
        data = msgspec.msgpack.encode(self)
        return GroupRecord(GroupKind.SHARE, self.state_name, PROTOCOL_TYPE, tuple(names), data)


def saved_group(group_epoch: int, target_epoch: int, state: str, members: Iterable[ShareMember]) -> SavedShareGroup:
    """Return the group in its stored form."""
    saved = [
        _SavedMember(
            each.member_id,
            each.rack_id,
            each.client_id,
            each.client_host,
            sorted(each.topic_names),
            each.epoch,
            each.previous_epoch,
            sorted(each.assigned),
        )
        for each in members
    ]
    return SavedShareGroup(group_epoch, target_epoch, state, saved)


def decode(data: bytes) -> tuple[SavedShareGroup, list[ShareMember]]:
    """CorruptError, or InvalidError for a newer format."""
    state = decode_saved(data, SavedShareGroup, "share group", FORMAT)
    members = [
        ShareMember(
            each.member_id,
            None,
            each.rack_id,
            each.client_id,
            each.client_host,
            frozenset(each.topic_names),
            each.epoch,
            each.previous_epoch,
            frozenset(each.assigned),
        )
        for each in state.members
    ]
    return state, members
