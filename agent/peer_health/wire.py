"""The bytes of "what do you reach?" between two agents, and of the answer.

Place: between reports.py of both agents, over the Kafka listener, under a private API key that is not advertised.
Invariant: both directions carry an HMAC with the cluster's secret, verified before anything else is used. The
answer's HMAC covers the question's, so it belongs to this question only.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from headrace.agent.peer_apis import PEER_HEALTH_KEY
from headrace.protocol import wire
from headrace.storage.dependency import BUCKET, METASTORE
from headrace.storage.errors import CorruptError, InvalidError

VERSION = 0
WINDOW_MS = 60_000
"""A question is valid for so long, on the database's clock."""
DEPENDENCIES = (METASTORE, BUCKET)
"""Dependencies by their bit in the answer."""

_MAC_BYTES = 32
_REQUEST_HEADER = struct.Struct(">hhi")
_QUESTION = struct.Struct(">qii")
_ANSWER = struct.Struct(">i32sB")
ANSWER_BYTES = _ANSWER.size


class Question(NamedTuple):
    """`asker` and `asked` are node ids; `sent_ms` on the database's clock."""

    sent_ms: int
    asker: int
    asked: int


def encode_question(question: Question, secret: bytes, correlation_id: int) -> tuple[bytes, bytes]:
    """(the request frame with its length, the question's MAC, which verifies the answer)."""
    body = _QUESTION.pack(*question)
    mac = hmac.digest(secret, body, "sha256")
    frame = _REQUEST_HEADER.pack(PEER_HEALTH_KEY, VERSION, correlation_id) + wire.string(None, False) + mac + body
    return wire.INT32.pack(len(frame)) + frame, mac


def decode_question(body: memoryview, secret: bytes) -> tuple[Question, bytes]:
    """(question, its MAC). InvalidError if it is malformed or not from an agent of this cluster."""
    if len(body) != _MAC_BYTES + _QUESTION.size:
        raise InvalidError(f"peer health: malformed question: bytes={len(body)}")
    mac, rest = bytes(body[:_MAC_BYTES]), body[_MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(secret, rest, "sha256")):
        raise InvalidError("peer health: not from an agent of this cluster")
    return Question(*_QUESTION.unpack(rest)), mac


def encode_answer(correlation_id: int, secret: bytes, question_mac: bytes, reached: frozenset[str]) -> bytes:
    """The response frame after its length."""
    bits = sum(1 << bit for bit, name in enumerate(DEPENDENCIES) if name in reached)
    return _ANSWER.pack(correlation_id, _answer_mac(secret, question_mac, bits), bits)


def decode_answer(frame: memoryview, secret: bytes, question_mac: bytes) -> frozenset[str]:
    """The dependencies that the answering agent reaches. CorruptError unless it answers this question."""
    if len(frame) != ANSWER_BYTES:
        raise CorruptError(f"peer health: malformed answer: bytes={len(frame)}")
    _, mac, bits = _ANSWER.unpack(frame)
    if not hmac.compare_digest(mac, _answer_mac(secret, question_mac, bits)):
        raise CorruptError("peer health: answer is not from an agent of this cluster")
    return frozenset(name for bit, name in enumerate(DEPENDENCIES) if bits >> bit & 1)


def _answer_mac(secret: bytes, question_mac: bytes, bits: int) -> bytes:
    return hmac.digest(secret, question_mac + bytes((bits,)), "sha256")
