"""What all messages between agents have in common: the seal, the frame, and the form of an error.

Place: under the modules that have the fields of one channel's messages, and under connection.py. Requests go over the
Kafka listener, under private API keys that are not advertised.
Invariant: a message carries an HMAC-SHA256 with the cluster's secret, or with a key that follows from it; it is
verified before anything else is used. Each error names its channel. A channel has separate connections and API keys.
A key is never used again for something else: agents of two releases meet during an upgrade.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple, TypeVar

from headrace.protocol import wire
from headrace.protocol.request import CloseConnection
from headrace.storage.errors import CorruptError, InvalidError

SHARE_TURN_KEY = 31_291
"""Only in envelopes: what an agent asks the owner of a share group for its client (share_turns.py)."""
ENVELOPE_KEY = 31_296
OPEN_KEY = 31_297
PEER_HEALTH_KEY = 31_298
ZONE_CACHE_KEY = 31_299
BETWEEN_AGENTS = frozenset({PEER_HEALTH_KEY, ZONE_CACHE_KEY, OPEN_KEY, ENVELOPE_KEY})
"""Their handlers serve only an agent that knows the cluster's secret."""

SEAL_BYTES = 32
WINDOW_MS = 60_000
"""What names its time is valid for so long, on the database's clock."""

_REQUEST_HEADER = struct.Struct(">hhi")
E = TypeVar("E", bound=Exception)

NOT_OURS = "not from an agent of this cluster"


def seal(key: bytes, *parts: bytes | memoryview) -> bytes:
    """Return the HMAC of the parts, as of one text."""
    if len(parts) == 1:
        return hmac.digest(key, parts[0], "sha256")
    digest = hmac.new(key, digestmod="sha256")
    for part in parts:
        digest.update(part)
    return digest.digest()


def framed(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return the request frame with its length."""
    frame = _REQUEST_HEADER.pack(api_key, version, correlation_id) + wire.string(None, False) + body
    return wire.INT32.pack(len(frame)) + frame


class Channel(NamedTuple):
    """One kind of conversation between agents."""

    name: str
    """First in each message of its errors."""

    def error(self, kind: type[E], event: str) -> E:
        """Return an error that names the channel."""
        return kind(f"{self.name}: {event}")

    def unsealed(self, body: memoryview, key: bytes, *before: bytes, refusal: str) -> tuple[memoryview, bytes]:
        """Return (a request after its seal, the seal). InvalidError, with the text `refusal`, unless it was sealed with
        this key, together with what is `before` it."""
        found, rest = bytes(body[:SEAL_BYTES]), body[SEAL_BYTES:]
        if not hmac.compare_digest(found, seal(key, *before, rest)):
            raise self.error(InvalidError, refusal)
        return rest, found

    def check_answer(self, found: bytes, key: bytes, *parts: bytes | memoryview, refusal: str) -> None:
        """CorruptError, with the text `refusal`, unless these parts of an answer were sealed so with this key."""
        if not hmac.compare_digest(found, seal(key, *parts)):
            raise self.error(CorruptError, refusal)

    def check_version(self, found: int, known: int) -> None:
        """CloseConnection for a request in another version than the known one."""
        if found != known:
            raise self.error(CloseConnection, f"unsupported version: version={found}")

    def check_addressee(self, asked: int, own: int, sent_ms: int, now_ms: int) -> None:
        """CloseConnection for a request to another agent than this one, or one that was not sent within WINDOW_MS."""
        if asked != own or abs(now_ms - sent_ms) > WINDOW_MS:
            raise self.error(CloseConnection, f"not for this agent, or stale: asked={asked} sent_ms={sent_ms}")


FORWARDING = Channel("forwarding")
ZONE_CACHE = Channel("zone cache")
PEER_HEALTH = Channel("peer health")
