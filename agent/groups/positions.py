"""ConsumerGroupPosition: members of a group report how far they are, and ask how far others are.

Place: a handler at the group's coordinator, for members that wait as metastore/partitions/waiting.py says.
Invariant: a position was reported by a member of the present generation to this coordinator; all others are "not yet
included". A member that is behind the group's epoch reports nothing: what it reads may belong to another one soon.
Nor does any member while the group has not been judged by the newest topics, and a partition that returns under its old
index is another one: a position in the earlier one would release those that wait for the new one.
Forgetting is always safe: a member sees in the answer that its position is missing, and reports it again. So the memory
is bounded (POSITIONS_MAX), and the groups that asked least recently are forgotten.
Source: KIP-253, change 7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.limits.client_texts import storable
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.topic_partitions import CreatedFrom
from headrace.protocol.ordered_requests import (
    NO_POSITION,
    VERSION,
    GroupPositionRequest,
    GroupPositionResponse,
    PartitionPosition,
    decode_position_request,
    encode_position_response,
)
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.protocol.typed import response_header
from headrace.storage.clock import Clock

POSITION_BYTES = 256
"""A position or a question, about."""
POSITIONS_MAX = REMEMBERED_BYTES["group_positions"] // POSITION_BYTES
"""Positions and questions of all groups together; an id of 256 bytes or more counts as one, too."""
_COMMIT_VERSION = 10
"""Version of OffsetCommit that is used: members are judged as they are there, by generation or member epoch."""

Ref = tuple[str, int, CreatedFrom | None]
"""Topic name, partition, and what the partition was created from: it differs each time that an index is used."""
Said = Sequence[tuple[Ref, PartitionPosition]]


@dataclass(slots=True)
class _Generation:
    """What members said in it. `name`: the coordinator's claim and the group's generation or epoch."""

    name: tuple[int, int]
    positions: dict[Ref, int] = field(default_factory=dict)
    waiting: dict[str, frozenset[Ref]] = field(default_factory=dict)
    """Member id -> what it asks for."""

    @property
    def size(self) -> int:
        ids = sum(text_bytes(member_id) // POSITION_BYTES for member_id in self.waiting)
        return max(1, len(self.positions) + sum(map(len, self.waiting.values())) + ids)


class GroupPositionMemory:
    """Positions by group, of one generation each."""

    def __init__(self, positions_max: int = POSITIONS_MAX) -> None:
        self._positions_max = positions_max
        self._groups: OrderedDict[str, _Generation] = OrderedDict()
        self._size = 0

    @property
    def in_use_bytes(self) -> int:
        """What is remembered."""
        return self._size * POSITION_BYTES

    def exchange(self, group_id: str, generation: tuple[int, int], member_id: str, said: Said) -> dict[Ref, int]:
        """Take what the member says; every partition that a member waits for, with its position or NO_POSITION."""
        known = self._groups.pop(group_id, None)
        self._size -= known.size if known else 0
        if known is None or known.name != generation:
            known = _Generation(generation)
        asked = set()
        for ref, each in said:
            if each.position >= 0:
                known.positions[ref] = each.position
            if each.need_position:
                asked.add(ref)
        known.waiting[member_id] = frozenset(asked)
        self._keep(group_id, known)
        wanted = frozenset[Ref]().union(*known.waiting.values())
        return {ref: known.positions.get(ref, NO_POSITION) for ref in sorted(wanted, key=lambda each: each[:2])}

    def _keep(self, group_id: str, known: _Generation) -> None:
        if known.size > self._positions_max:
            return
        self._groups[group_id] = known
        self._size += known.size
        while self._size > self._positions_max:
            _, oldest = self._groups.popitem(last=False)
            self._size -= oldest.size


class ConsumerGroupPosition:
    """Exchange the positions of a group's members, for clients that keep the order of keys."""

    def __init__(
        self,
        groups: HeldGroups,
        cluster: ClusterView,
        clock: Clock,
        topics: Callable[[], Mapping[str, TopicImage]],
    ) -> None:
        """`topics`: by name, as consumer groups are judged by them."""
        self._groups, self._cluster, self._clock, self._topics = groups, cluster, clock, topics
        self._memory = GroupPositionMemory()

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of positions."""
        return self._memory.in_use_bytes

    async def __call__(self, request: Request) -> Response:
        if request.api_version != VERSION:
            raise CloseConnection("consumer group position: unsupported version")
        asked = decode_position_request(request.body, request.connection.request_elements_max)
        body = encode_position_response(await self._answer(asked))
        return Response([response_header(request.correlation_id, False), body])

    async def _answer(self, asked: GroupPositionRequest) -> GroupPositionResponse:
        if not storable(asked.group_id):
            return GroupPositionResponse(ErrorCode.invalid_group_id, {})
        held = await self._groups.find(asked.group_id)
        if isinstance(held, ErrorCode):
            return GroupPositionResponse(held, {})
        if asked.generation < 0:
            return GroupPositionResponse(ErrorCode.unknown_member_id, {})
        member = MemberRef(asked.member_id, None, asked.generation)
        code = held.group.check_commit(self._clock.monotonic(), member, _COMMIT_VERSION)
        if code is not ErrorCode.none:
            return GroupPositionResponse(code, {})
        said = _existing(self._cluster.image, asked)
        generation = held.group.generation_by(self._topics())
        if generation != asked.generation:  # the member's next heartbeat brings it to a newer epoch
            nothing = {ref: NO_POSITION for ref, each in said if each.need_position}
            return GroupPositionResponse(ErrorCode.none, _by_topic(nothing))
        found = self._memory.exchange(asked.group_id, (held.epoch, generation), asked.member_id, said)
        return GroupPositionResponse(ErrorCode.none, _by_topic(found))


def _existing(image: MetadataImage, asked: GroupPositionRequest) -> list[tuple[Ref, PartitionPosition]]:
    found = []
    for name, partitions in asked.topics.items():
        if (topic := image.topics_by_name.get(name)) is not None:
            rows = (each for each in partitions if topic.has(each.partition))
            found += [((name, each.partition, topic.created_from.get(each.partition)), each) for each in rows]
    return found


def _by_topic(found: Mapping[Ref, int]) -> dict[str, list[PartitionPosition]]:
    topics: dict[str, list[PartitionPosition]] = {}
    for (topic, index, _), position in found.items():
        topics.setdefault(topic, []).append(PartitionPosition(index, True, position))
    return topics
