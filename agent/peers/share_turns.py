"""What an agent asks the owner of a share group for its client, once per ShareFetch or ShareAcknowledge.

Place: between the handlers in agent/fetch/share and the owner in agent/groups/share. If the owner is another agent, the
bytes are the body of an envelope under SHARE_TURN_KEY (forwarding/).
Invariant: fields are added at the end with defaults, never changed: agents of two releases meet during an upgrade.
"""

from __future__ import annotations

import msgspec

from headrace.storage.errors import InvalidError

VERSION = 0


class PartitionAsk(msgspec.Struct, frozen=True, array_like=True):
    """`acks`: (first offset, last offset, a type for all or one for each). `wants`: records are asked for."""

    key: int
    acks: list[tuple[int, int, bytes]] = []
    wants: bool = False


class Returned(msgspec.Struct, frozen=True, array_like=True):
    """Acquired records that the agent did not send. `is_done`: there are none, or they are damaged or of an aborted
    transaction; where there are none the range may end behind what was acquired."""

    key: int
    first: int
    last: int
    is_done: bool = False


class ShareTurn(msgspec.Struct, frozen=True, array_like=True):
    """`closes`: the client's session ends, and what it had acquired in these partitions is free. `claim`: of the answer
    from which the returned records are; 0 from an agent that does not say it. `takes_batches`: `max_records` may be
    exceeded so that the last batch is complete."""

    group_id: str
    member_id: str
    partitions: list[PartitionAsk] = []
    max_records: int = 0
    max_wait_ms: int = 0
    closes: bool = False
    returned: list[Returned] = []
    claim: int = 0
    takes_batches: bool = False


class PartitionTurn(msgspec.Struct, frozen=True, array_like=True):
    """Codes are Kafka's. `acquired`: (first offset, last offset, number of the attempt). `needed_end`: the end of as
    many records as were asked for; records from there on only complete their batch. 0: all were asked for."""

    key: int
    error: int = 0
    ack_error: int = 0
    acquired: list[tuple[int, int, int]] = []
    needed_end: int = 0


class TurnAnswer(msgspec.Struct, frozen=True, array_like=True):
    """`error` refuses the whole turn: nothing was done. `lock_ms`: how long records stay acquired. `waited_ms`: how
    long the turn took at the owner before they were. `claim`: the coordinator epoch of the owner. Both are 0 from an
    agent that does not say them."""

    error: int = 0
    partitions: list[PartitionTurn] = []
    lock_ms: int = 0
    read_committed: bool = False
    waited_ms: int = 0
    claim: int = 0


_TURN = msgspec.msgpack.Decoder(ShareTurn)
_ANSWER = msgspec.msgpack.Decoder(TurnAnswer)
encode = msgspec.msgpack.encode


def decode_turn(data: bytes | memoryview) -> ShareTurn:
    """InvalidError for malformed bytes."""
    try:
        return _TURN.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidError(f"malformed share turn: {error}") from error


def decode_answer(data: bytes | memoryview) -> TurnAnswer:
    """InvalidError for malformed bytes."""
    try:
        return _ANSWER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidError(f"malformed answer to a share turn: {error}") from error
