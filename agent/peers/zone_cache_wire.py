"""The bytes of the zone cache's one call: a request for many ranges of many files, and its answer.

Place: between agent/fetch/zone_cache/shared.py and serving.py, over the agents' Kafka listener, under a private API
key that is not advertised.
Invariant: both directions carry an HMAC with the cluster's secret, verified before anything else is
used. The answer's HMAC covers the request's, so it belongs to this request only, and each
range's status, length and SHA-256: a truncated or altered range is detected before it is used, also if it was altered
on purpose.
A request is valid for WINDOW_MS on the database's clock; repeating it within that time reads the same
bytes again and has no other effect.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace.agent.peers.channel import NOT_OURS, SEAL_BYTES, ZONE_CACHE, ZONE_CACHE_KEY, framed, seal
from headrace.protocol import wire
from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.segment.file_range import FileRange

VERSION = 1
"""1: SHA-256 of each range instead of CRC32C."""
MAX_RANGES = 8_192
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""All ranges of one call."""

OK, BUSY, FAILED = 0, 1, 2
"""The result of one range: its bytes follow; the owner serves too many already; it could not be read."""

_ASK = struct.Struct(">qiii")
_RANGE = struct.Struct(">16sqiq")
_ROW = struct.Struct(">bi32s")
_NO_DIGEST = bytes(32)


class Ask(NamedTuple):
    """`asker` and `owner` are node ids; `sent_ms` on the database's clock; each range is within one chunk."""

    sent_ms: int
    asker: int
    owner: int
    ranges: list[FileRange]

    @property
    def size_bytes(self) -> int:
        """Size of all requested ranges."""
        return sum(wanted.end - wanted.start for wanted in self.ranges)


def encode_ask(ask: Ask, secret: bytes, correlation_id: int) -> tuple[bytes, bytes]:
    """(the request frame with its length, the request's MAC, which is needed to verify the answer)."""
    body = b"".join(
        (
            _ASK.pack(ask.sent_ms, ask.asker, ask.owner, len(ask.ranges)),
            *(_RANGE.pack(p.file_id.bytes, p.start, p.end - p.start, p.live_end) for p in ask.ranges),
        )
    )
    mac = seal(secret, body)
    return framed(ZONE_CACHE_KEY, VERSION, correlation_id, mac + body), mac


def decode_ask(body: memoryview, secret: bytes) -> tuple[Ask, bytes]:
    """(request, its MAC). InvalidError if the MAC is not the cluster's or the body is malformed."""
    size = len(body) - SEAL_BYTES
    if size > _ASK.size + MAX_RANGES * _RANGE.size:  # an unauthorized client may send 100 MB: do not hash them
        raise ZONE_CACHE.error(InvalidError, f"request too long: bytes={size}")
    rest, mac = ZONE_CACHE.unsealed(body, secret, refusal=NOT_OURS)
    try:
        sent_ms, asker, owner, count = _ASK.unpack_from(rest)
        if not 0 < count <= MAX_RANGES or len(rest) != _ASK.size + count * _RANGE.size:
            raise ZONE_CACHE.error(InvalidError, f"malformed question: ranges={count} bytes={len(rest)}")
        ranges = [
            FileRange(uuid.UUID(bytes=file_id), start, start + length, live_end)
            for file_id, start, length, live_end in _RANGE.iter_unpack(rest[_ASK.size :])
        ]
    except struct.error as error:
        raise ZONE_CACHE.error(InvalidError, f"malformed question: {error}") from error
    ask = Ask(sent_ms, asker, owner, ranges)
    if any(wanted.start < 0 or wanted.end <= wanted.start for wanted in ranges) or ask.size_bytes > MAX_ANSWER_BYTES:
        raise ZONE_CACHE.error(InvalidError, "ranges cannot be served")
    return ask, mac


def encode_answer(
    correlation_id: int, secret: bytes, ask_mac: bytes, answers: Sequence[memoryview | int]
) -> list[bytes | memoryview]:
    """Buffers of the response frame; per range its bytes, which are not copied, or BUSY or FAILED."""
    rows = b"".join(
        _ROW.pack(answer, 0, _NO_DIGEST)
        if isinstance(answer, int)
        else _ROW.pack(OK, len(answer), hashlib.sha256(answer).digest())
        for answer in answers
    )
    head = wire.INT32.pack(correlation_id) + seal(secret, ask_mac, rows) + wire.INT32.pack(len(answers)) + rows
    return [head, *(answer for answer in answers if not isinstance(answer, int))]


def largest_answer(ranges: Sequence[FileRange]) -> int:
    """Bytes of the answer that has every range."""
    rows = wire.INT32.size * 2 + SEAL_BYTES + len(ranges) * _ROW.size
    return rows + sum(wanted.end - wanted.start for wanted in ranges)


def decode_answer(
    frame: memoryview, secret: bytes, ask_mac: bytes, ranges: Sequence[FileRange]
) -> list[memoryview | int | CorruptError]:
    """Return for each requested range its bytes, BUSY or FAILED; CorruptError for bytes that do not match
    their checksum.

    CorruptError for the whole answer if it is not from an agent of this cluster for this request.
    """
    at = wire.INT32.size + SEAL_BYTES
    rows_end = at + wire.INT32.size + len(ranges) * _ROW.size
    if len(frame) < rows_end or wire.INT32.unpack_from(frame, at)[0] != len(ranges):
        raise ZONE_CACHE.error(CorruptError, f"answer does not fit: asked={len(ranges)} bytes={len(frame)}")
    rows = frame[at + wire.INT32.size : rows_end]
    found_mac = bytes(frame[wire.INT32.size : at])
    ZONE_CACHE.check_answer(found_mac, secret, ask_mac, rows, refusal=f"answer is {NOT_OURS}")
    found: list[memoryview | int | CorruptError] = []
    position = rows_end
    for wanted, (status, length, digest) in zip(ranges, _ROW.iter_unpack(rows), strict=True):
        data = frame[position : position + length]
        position += length
        if status != OK:
            found.append(status)
        elif length != wanted.end - wanted.start or len(data) != length:
            found.append(ZONE_CACHE.error(CorruptError, f"short range: file={wanted.file_id} got={len(data)}"))
        elif hashlib.sha256(data).digest() != digest:
            found.append(ZONE_CACHE.error(CorruptError, f"range altered: file={wanted.file_id} start={wanted.start}"))
        else:
            found.append(data)
    return found
