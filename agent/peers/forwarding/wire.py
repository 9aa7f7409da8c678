"""The bytes of a link between two agents: its opening, and envelopes with a client's request in them.

Place: between links.py and service.py, over the Kafka listener, under two private API keys that are not advertised.
Definitions: the agent that a client is connected to opens the link and sends envelopes; the other one serves them.
Invariant: the opening carries an HMAC with the cluster's secret, both ways. It gives the link a key that no other link
has; every envelope and every answer carries an HMAC with this key and its number on the link, verified before anything
else is used. So nothing that was sent on one link can be repeated on it or on another one.
Versions: the opening names the newest envelope that each side knows, and the lower one is used.
    version 1  it is a link with the answer to its opening: who repeats an opening gets a link, without its key
    version 2  it is a link from its first envelope on, which proves the key, and so the nonce of the answering side.
               The first one is a PING: a connection that is no link yet may not send much
Version 1 is of agents from before version 2; those of 0.1.0 have no links. It is refused from an agent that registered
with PROVEN_LINKS (metastore/api/agents.py), so it ends with the last older agent. 0.3.0 need not know it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.agent.peers.channel import ENVELOPE_KEY, FORWARDING, NOT_OURS, OPEN_KEY, SEAL_BYTES, framed, seal
from headrace.protocol import wire
from headrace.storage.errors import CorruptError, InvalidError

OPEN_VERSION = 0
NEWEST_ENVELOPE = 2
PROVEN = 2
"""The version from which on the first envelope opens the link."""
NONCE_BYTES = 16
ANSWER_BYTES_MAX = 128 * 1024 * 1024

_OPENING = struct.Struct(">qiih16s")
_OPENED = struct.Struct(">i32sh16s")
OPENED_BYTES = _OPENED.size
_FIXED = struct.Struct(">bqqhhi")
_ANSWER = struct.Struct(">i32sb")
_NUMBER = struct.Struct(">ci")
_OPEN, _ANSWERED = b"open", b"opened"


class EnvelopeKind(enum.IntEnum):
    """What an envelope says."""

    REQUEST = 0
    """A client's request; it is answered."""
    ENDED = 1
    """The client's connection ended; not answered."""
    PING = 2
    """Answered at once."""


class ForwardOutcome(enum.IntEnum):
    """What became of a request."""

    ANSWERED = 0
    """The response frame for the client follows."""
    NO_ANSWER = 1
    """The client expects none."""
    CLOSE = 2
    """The client's connection ends; the reason follows."""
    TOO_MANY_ELEMENTS = 3
    """It has more array elements than request.max.elements; the reason follows."""
    DROPPED = 4
    """Not started: its deadline had passed, or its client was gone."""


class Opening(NamedTuple):
    """`asker` and `asked` are node ids; `sent_ms` on the database's clock."""

    sent_ms: int
    asker: int
    asked: int
    newest_envelope: int
    nonce: bytes


class Envelope(NamedTuple):
    """`connection_id` names the client's connection on this link; `deadline_ms` is on the database's clock: later the
    request may not start. The other fields are those of the client's connection and of its request.
    """

    kind: EnvelopeKind
    connection_id: int
    deadline_ms: int = 0
    api_key: int = -1
    api_version: int = 0
    correlation_id: int = 0
    listener: str = ""
    peer: str = ""
    client_id: str | None = None
    principal: str | None = None
    body: bytes | memoryview = b""


def encode_opening(opening: Opening, secret: bytes, correlation_id: int) -> tuple[bytes, bytes]:
    """(the request frame with its length, its MAC)."""
    body = _OPENING.pack(*opening)
    mac = seal(secret, _OPEN, body)
    return framed(OPEN_KEY, OPEN_VERSION, correlation_id, mac + body), mac


def decode_opening(body: memoryview, secret: bytes) -> tuple[Opening, bytes]:
    """(opening, its MAC). InvalidError if it is malformed or not from an agent of this cluster."""
    if len(body) != SEAL_BYTES + _OPENING.size:
        raise FORWARDING.error(InvalidError, f"malformed opening: bytes={len(body)}")
    rest, mac = FORWARDING.unsealed(body, secret, _OPEN, refusal=f"opening is {NOT_OURS}")
    return Opening(*_OPENING.unpack(rest)), mac


def encode_opened(correlation_id: int, secret: bytes, opening_mac: bytes, version: int, nonce: bytes) -> bytes:
    """The response frame after its length; `version` of the envelopes from here on."""
    rest = struct.pack(">h", version) + nonce
    return _OPENED.pack(correlation_id, seal(secret, _ANSWERED, opening_mac, rest), version, nonce)


def decode_opened(frame: memoryview, secret: bytes, opening_mac: bytes) -> tuple[int, bytes]:
    """(version, nonce). CorruptError unless it answers this opening."""
    if len(frame) != OPENED_BYTES:
        raise FORWARDING.error(CorruptError, f"malformed answer to the opening: bytes={len(frame)}")
    _, mac, version, nonce = _OPENED.unpack(frame)
    rest = struct.pack(">h", version) + nonce
    FORWARDING.check_answer(
        mac, secret, _ANSWERED, opening_mac, rest, refusal=f"the answer to the opening is {NOT_OURS}"
    )
    return version, nonce


def link_key(secret: bytes, opening_mac: bytes, nonce: bytes) -> bytes:
    """The key of the link that was opened so."""
    return seal(secret, b"link", opening_mac, nonce)


def encode_envelope(envelope: Envelope, key: bytes, number: int, version: int = NEWEST_ENVELOPE) -> bytes:
    """The request frame with its length; `number` is its correlation id on the link."""
    body = b"".join(
        (
            _FIXED.pack(*envelope[:6]),
            *(wire.string(text, False) for text in envelope[6:10]),
            envelope.body,
        )
    )
    return framed(ENVELOPE_KEY, version, number, seal(key, _NUMBER.pack(b">", number), body) + body)


def decode_envelope(body: memoryview, key: bytes, number: int) -> Envelope:
    """InvalidError if it is malformed or not the envelope with this number of this link."""
    refusal = f"an envelope is not from the agent that opened the link: number={number}"
    rest, _ = FORWARDING.unsealed(body, key, _NUMBER.pack(b">", number), refusal=refusal)
    try:
        kind, connection_id, deadline_ms, api_key, api_version, correlation_id = _FIXED.unpack_from(rest)
        listener, position = wire.read_string(rest, _FIXED.size, False)
        peer, position = wire.read_string(rest, position, False)
        client_id, position = wire.read_string_or_null(rest, position, False)
        principal, position = wire.read_string_or_null(rest, position, False)
        return Envelope(
            EnvelopeKind(kind),
            connection_id,
            deadline_ms,
            api_key,
            api_version,
            correlation_id,
            listener,
            peer,
            client_id,
            principal,
            rest[position:],
        )
    except (*wire.MALFORMED, ValueError) as error:
        raise FORWARDING.error(InvalidError, f"malformed envelope: number={number} error={error}") from error


def encode_answer(
    number: int, key: bytes, outcome: ForwardOutcome, buffers: Sequence[bytes | memoryview] = ()
) -> list[bytes | memoryview]:
    """Buffers of the response frame; the last ones are the client's, not copied."""
    mac = seal(key, _NUMBER.pack(b"<", number), bytes((outcome,)), *buffers)
    return [_ANSWER.pack(number, mac, outcome), *buffers]


def decode_answer(frame: memoryview, key: bytes, number: int) -> tuple[ForwardOutcome, memoryview]:
    """(what became of the request, what follows). CorruptError unless it answers the envelope with this number."""
    try:
        found, mac, outcome = _ANSWER.unpack_from(frame)
        sealed, rest = frame[_ANSWER.size - 1 : _ANSWER.size], frame[_ANSWER.size :]
        refusal = f"an answer is not from the agent that was asked: number={number}"
        if found != number:
            raise FORWARDING.error(CorruptError, refusal)
        FORWARDING.check_answer(mac, key, _NUMBER.pack(b"<", number), sealed, rest, refusal=refusal)
        return ForwardOutcome(outcome), rest
    except (struct.error, ValueError) as error:
        raise FORWARDING.error(CorruptError, f"malformed answer: number={number} error={error}") from error
