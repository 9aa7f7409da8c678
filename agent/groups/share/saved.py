"""A share group's members as they are stored, and the bytes of what is kept of a partition.

Place: written by each change of group.py and of the owner's partitions, read when an agent becomes the coordinator.
Invariant: fields are added with defaults, never renumbered; an unknown format is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from headrace.agent.groups.share.share_partition import KeptRange
from headrace.agent.groups.share.share_values import ShareMember
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.storage.errors import CorruptError, InvalidError

FORMAT = 1
PROTOCOL_TYPE = "share"
_HEAD = struct.Struct(">BI")
_RANGE = struct.Struct(">QIh")
"""First offset, number of records after it, attempts; -1 attempts: done."""
_MOST = 2**32 - 1
_DONE = -1


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
    try:
        state = msgspec.msgpack.decode(data, type=SavedShareGroup)
    except msgspec.DecodeError as error:
        raise CorruptError(f"saved share group is damaged: {error}") from error
    if state.format != FORMAT:
        raise InvalidError(f"unknown format of a saved share group: format={state.format}")
    members = [
        ShareMember(
            each.member_id,
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


def encode_kept(kept: Iterable[KeptRange]) -> bytes:
    """Return the bytes of share_partitions.kept."""
    rows = [
        _RANGE.pack(first, min(each.last - first, _MOST), _DONE if each.is_done else min(each.tries, 2**15 - 1))
        for each in kept
        for first in range(each.first, each.last + 1, _MOST + 1)
    ]
    return _HEAD.pack(FORMAT, len(rows)) + b"".join(rows)


def decode_kept(data: bytes, end: int) -> list[KeptRange]:
    """Return what is kept of records before `end`. CorruptError, or InvalidError for a newer format."""
    try:
        version, count = _HEAD.unpack_from(data)
        if version != FORMAT:
            raise InvalidError(f"unknown format of a share partition: format={version}")
        if len(data) != _HEAD.size + count * _RANGE.size:
            raise CorruptError(f"stored share partition is damaged: bytes={len(data)} ranges={count}")
        rows = [_RANGE.unpack_from(data, _HEAD.size + at * _RANGE.size) for at in range(count)]
    except struct.error as error:
        raise CorruptError(f"stored share partition is damaged: {error}") from error
    return [
        KeptRange(first, min(first + more, end - 1), tries == _DONE, max(tries, 0))
        for first, more, tries in rows
        if first < end
    ]
