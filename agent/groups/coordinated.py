"""The interface of a group of any kind, for those that hold it: a pure state machine with a stored form.

Place: held_groups.py holds groups by this interface and gives them claim, lease, saves and timers. classic/group.py
is the classic kind; members/member_group.py is what the kinds have in common of which members heartbeat with an
epoch. `decode_saved` is under the modules of each kind that have the fields of its stored form.
Invariant: every method takes the time (seconds of the clock's monotonic()) and returns what is to be
done now (GroupEffect of group_values.py), in order; none waits. The next coordinator restores the group from its
last Save. An unknown stored format is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import Departure, GroupEffect, JoinRequest, MemberRef, SyncRequest, Token
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import CorruptError, InvalidError


class SavedFormat(Protocol):
    """Fields are added with defaults, never renumbered; else `format` rises."""

    @property
    def format(self) -> int: ...


S = TypeVar("S", bound=SavedFormat)


def decode_saved(data: bytes, kind: type[S], what: str, newest: int) -> S:
    """CorruptError, or InvalidError for another format than `newest`. `what`: the kind of group, for these."""
    try:
        state = msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(f"saved {what} is damaged: {error}") from error
    if state.format != newest:
        raise InvalidError(f"unknown format of a saved {what}: format={state.format}")
    return state


FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
"""The version of OffsetCommit from which on a member may say its epoch (KIP-848)."""


class ClassicProtocol(Protocol):
    """Requests of members that join and sync: of a classic group, or in a consumer group, which may refuse them."""

    def join(self, now: float, request: JoinRequest, token: Token) -> list[GroupEffect]:
        """JoinGroup. The answer to `token` may come much later."""

    def sync(self, now: float, request: SyncRequest, token: Token) -> list[GroupEffect]:
        """SyncGroup."""

    def heartbeat(self, now: float, ref: MemberRef) -> ErrorCode:
        """Heartbeat of the classic protocol."""

    def leave(self, now: float, refs: Iterable[MemberRef]) -> tuple[list[Departure], list[GroupEffect]]:
        """LeaveGroup: members leave, or an admin removes them."""


class CoordinatedGroup(Protocol):
    """One group."""

    group_id: str

    @property
    def kind(self) -> GroupKind: ...

    @property
    def state_name(self) -> str:
        """Kafka's name of the state, as its tools show it."""

    @property
    def protocol_type(self) -> str | None:
        """Return None for a group that never had members."""

    def epochs_from(self, lowest: int) -> None:
        """Generations and group epochs that begin from now on are at least this."""

    @property
    def classic_protocol(self) -> ClassicProtocol | None:
        """What serves members of the classic protocol; None if none can be in a group of this kind."""

    def generation_by(self, topics: object) -> int | None:
        """The generation, or the group epoch; None while it may be another one by these topics, the newest."""

    @property
    def keeps_offsets(self) -> bool:
        """Whether groups of this kind have committed offsets."""

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """Return whether an OffsetCommit of that version, by that member and generation (or member epoch), is to be
        stored. `keys`: its partitions; a member epoch that is over counts only for these.
        """

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """Return whether an OffsetFetch that names that member and member epoch is to be answered; most name none."""

    def subscribed_topics(self) -> frozenset[str] | None:
        """Names of the topics that the members consume; None when it cannot be known."""

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """Topics came, went or grew, or anything else did."""

    def tick(self, now: float) -> list[GroupEffect]:
        """Act on every deadline that has passed."""

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do; None: never, unless something happens."""

    def is_idle(self) -> bool:
        """No member is in it or about to be."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes that the group uses, by the address of the client that they are for."""

    def member_bytes(self, member_id: str) -> int:
        """Return the part of a member in the group's bytes; 0 if there is no such member."""

    def deleted(self) -> None:
        """An admin deleted what is stored of it; it is dropped next."""

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """A Save was stored, or failed with `code`: answer the requests that waited for it."""

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """This agent coordinates the group no more, or another kind takes its place: refuse what waits with `code`."""


Restore = Callable[[str, float, GroupRecord | None], tuple[CoordinatedGroup, list[GroupEffect]]]
"""(group id, now, what was saved last or None) -> the group as it continues, and what is to be done at once."""
