"""The bytes of "what do you reach?" between two agents, and of the answer.

Place: between health_reports.py of both agents, over the Kafka listener, under a private API key that is not
advertised.
Invariant: both directions carry an HMAC with the cluster's secret, verified before anything else is used. The
answer's HMAC covers the question's, so it belongs to this question only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.agent.peers.channel import NOT_OURS, PEER_HEALTH, PEER_HEALTH_KEY, SEAL_BYTES, framed, seal
from headrace.storage.dependency import BUCKET, METASTORE
from headrace.storage.errors import CorruptError, InvalidError

VERSION = 0
DEPENDENCIES = (METASTORE, BUCKET)
"""Dependencies by their bit in the answer."""

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
    mac = seal(secret, body)
    return framed(PEER_HEALTH_KEY, VERSION, correlation_id, mac + body), mac


def decode_question(body: memoryview, secret: bytes) -> tuple[Question, bytes]:
    """(question, its MAC). InvalidError if it is malformed or not from an agent of this cluster."""
    if len(body) != SEAL_BYTES + _QUESTION.size:
        raise PEER_HEALTH.error(InvalidError, f"malformed question: bytes={len(body)}")
    rest, mac = PEER_HEALTH.unsealed(body, secret, refusal=NOT_OURS)
    return Question(*_QUESTION.unpack(rest)), mac


def encode_answer(correlation_id: int, secret: bytes, question_mac: bytes, reached: frozenset[str]) -> bytes:
    """The response frame after its length."""
    bits = sum(1 << bit for bit, name in enumerate(DEPENDENCIES) if name in reached)
    return _ANSWER.pack(correlation_id, seal(secret, question_mac, bytes((bits,))), bits)


def decode_answer(frame: memoryview, secret: bytes, question_mac: bytes) -> frozenset[str]:
    """The dependencies that the answering agent reaches. CorruptError unless it answers this question."""
    if len(frame) != ANSWER_BYTES:
        raise PEER_HEALTH.error(CorruptError, f"malformed answer: bytes={len(frame)}")
    _, mac, bits = _ANSWER.unpack(frame)
    PEER_HEALTH.check_answer(mac, secret, question_mac, bytes((bits,)), refusal=f"answer is {NOT_OURS}")
    return frozenset(name for bit, name in enumerate(DEPENDENCIES) if bits >> bit & 1)
