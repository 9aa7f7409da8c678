"""Log lines of requests that took longer than slow.request.ms: who asked for what, and where the time went.

Place: asked by the replies of every connection when a reply is sent (replies.py).
Invariant: what a client asked to wait for does not count: a Fetch's max.wait, and the rounds of JoinGroup and
SyncGroup, which wait for other members. At most LINES lines a minute and API; the next one has the number left out.
"""

from __future__ import annotations

import logging
import math
import struct

from headrace.agent.listener.replies import Slot
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.own_requests import api_name
from headrace.protocol.request import ANONYMOUS, ClientConnection
from headrace.storage.repetition import LIMITED, Repetitions

logger = logging.getLogger(__name__)

LINES = 5
_ROUNDS = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)})
_WITHOUT_REPLICA = 15
"""The first version of Fetch that begins with the wait: before it is the replica's id."""
_INT = struct.Struct(">i")


class SlowRequests:
    """For one listener. `slow_ms` 0: no lines."""

    def __init__(self, slow_ms: int) -> None:
        self.seconds = slow_ms / 1000 if slow_ms else math.inf
        self._repetitions = Repetitions(lines=LINES)

    def report(self, client: ClientConnection, slot: Slot, now: float) -> None:
        """The reply is about to be sent, and took longer than `seconds`."""
        header = slot.header
        if header.api_key in _ROUNDS or now - slot.received_at - slot.asked_wait_seconds < self.seconds:
            return
        left_out = self._repetitions.left_out(header.api_key, now)
        if left_out is None:
            return
        logger.warning(
            "slow request: api=%s seconds=%.1f handled_seconds=%.1f waited_for_earlier_replies_seconds=%.1f"
            " client_id=%r principal=%s peer=%s listener=%s left_out=%d",
            api_name(header.api_key),
            now - slot.received_at,
            slot.made_at - slot.received_at,
            now - slot.made_at,
            header.client_id,
            client.principal or ANONYMOUS,
            client.peer,
            client.listener,
            left_out,
            extra=LIMITED,
        )


def asked_wait_seconds(version: int, body: memoryview) -> float:
    """Return how long a Fetch of this version may wait for records; 0 if its body is too short."""
    start = 0 if version >= _WITHOUT_REPLICA else _INT.size
    if len(body) < start + _INT.size:
        return 0.0
    milliseconds: int = _INT.unpack_from(body, start)[0]
    return max(0, milliseconds) / 1000.0
