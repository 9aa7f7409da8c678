"""The bytes of what agents say to each other: those of the release before, since agents of both meet in an upgrade."""

from __future__ import annotations

import uuid
from pathlib import Path

from headrace.agent.peers import health_reports as health
from headrace.agent.peers import zone_cache_wire as zone_cache
from headrace.agent.peers.channel import BETWEEN_AGENTS
from headrace.agent.peers.forwarding import wire as forwarding
from headrace.protocol.frames import read_request_header
from headrace.storage.dependency import BUCKET, METASTORE
from headrace.storage.segment.file_range import FileRange

SECRET = bytes(range(32))
SEAL = bytes(range(32, 64))
NONCE = bytes(range(64, 80))
KEY = bytes(range(80, 112))
DATA = b"The bytes of a chunk."
RANGES = [
    FileRange(uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF), 4096, 4096 + len(DATA), 1 << 20),
    FileRange(uuid.UUID(int=7), 0, 1),
    FileRange(uuid.UUID(int=8), 5, 9),
]
REQUEST = forwarding.Envelope(
    forwarding.EnvelopeKind.REQUEST,
    *(17, 1_800_000_004_000, 11, 9, 23, "CLIENTS", "10.0.0.9:40412", "orders-7", "User:alice"),
    b"the client's request",
)
ENDED = forwarding.Envelope(forwarding.EnvelopeKind.ENDED, 17)


def _written() -> dict[str, bytes]:
    """Each message of each channel."""
    opening, opening_seal = forwarding.encode_opening(
        forwarding.Opening(1_800_000_000_000, 3, 5, forwarding.NEWEST_ENVELOPE, NONCE), SECRET, 1
    )
    ask, ask_seal = zone_cache.encode_ask(zone_cache.Ask(1_800_000_000_000, 3, 5, RANGES), SECRET, 9)
    question, question_seal = health.encode_question(health.Question(1_800_000_000_000, 3, 5), SECRET, 2)
    answers = [memoryview(DATA), zone_cache.BUSY, zone_cache.FAILED]
    client_answer = [b"the client's ", memoryview(b"answer")]
    return {
        "opening": opening,
        "opening's seal": opening_seal,
        "opened": forwarding.encode_opened(1, SECRET, SEAL, 2, NONCE),
        "link's key": forwarding.link_key(SECRET, SEAL, NONCE),
        "request": forwarding.encode_envelope(REQUEST, KEY, 12),
        "request in version 1": forwarding.encode_envelope(REQUEST, KEY, 12, 1),
        "ended": forwarding.encode_envelope(ENDED, KEY, 13),
        "answered": b"".join(forwarding.encode_answer(12, KEY, forwarding.ForwardOutcome.ANSWERED, client_answer)),
        "dropped": b"".join(forwarding.encode_answer(12, KEY, forwarding.ForwardOutcome.DROPPED)),
        "ask": ask,
        "ask's seal": ask_seal,
        "ranges": b"".join(zone_cache.encode_answer(9, SECRET, SEAL, answers)),
        "question": question,
        "question's seal": question_seal,
        "reached both": health.encode_answer(2, SECRET, SEAL, frozenset({METASTORE, BUCKET})),
        "reached none": health.encode_answer(2, SECRET, SEAL, frozenset()),
    }


def _recorded() -> dict[str, bytes]:
    lines = (Path(__file__).parents[2] / "golden" / "peer_messages.tsv").read_text(encoding="utf-8").splitlines()
    return {name: bytes.fromhex(digits) for name, digits in (line.split("\t") for line in lines)}


def test_every_message_has_its_bytes() -> None:
    assert {name: found.hex() for name, found in _written().items()} == {
        name: recorded.hex() for name, recorded in _recorded().items()
    }


def test_the_recorded_requests_are_read() -> None:
    recorded = _recorded()
    opening, seal = forwarding.decode_opening(_body(recorded["opening"]), SECRET)
    assert (opening.asker, opening.asked, opening.nonce, seal) == (3, 5, NONCE, recorded["opening's seal"])
    assert forwarding.decode_envelope(_body(recorded["request"]), KEY, 12) == REQUEST
    assert forwarding.decode_envelope(_body(recorded["request in version 1"]), KEY, 12) == REQUEST
    assert forwarding.decode_envelope(_body(recorded["ended"]), KEY, 13) == ENDED
    ask = zone_cache.Ask(1_800_000_000_000, 3, 5, RANGES)
    assert zone_cache.decode_ask(_body(recorded["ask"]), SECRET) == (ask, recorded["ask's seal"])
    question = health.Question(1_800_000_000_000, 3, 5)
    assert health.decode_question(_body(recorded["question"]), SECRET) == (question, recorded["question's seal"])


def test_the_recorded_answers_are_read() -> None:
    recorded = {name: memoryview(found) for name, found in _recorded().items()}
    assert forwarding.decode_opened(recorded["opened"], SECRET, SEAL) == (2, NONCE)
    answered = forwarding.ForwardOutcome.ANSWERED, b"the client's answer"
    assert forwarding.decode_answer(recorded["answered"], KEY, 12) == answered
    assert forwarding.decode_answer(recorded["dropped"], KEY, 12) == (forwarding.ForwardOutcome.DROPPED, b"")
    ranges = [DATA, zone_cache.BUSY, zone_cache.FAILED]
    assert zone_cache.decode_answer(recorded["ranges"], SECRET, SEAL, RANGES) == ranges
    assert zone_cache.largest_answer(RANGES) == len(recorded["ranges"]) + len(b"0") + len(b"5678")
    assert health.decode_answer(recorded["reached both"], SECRET, SEAL) == {METASTORE, BUCKET}
    assert health.decode_answer(recorded["reached none"], SECRET, SEAL) == frozenset()


def test_the_keys_of_the_requests_stay() -> None:
    assert sorted(BETWEEN_AGENTS) == [31_296, 31_297, 31_298, 31_299]
    assert (forwarding.OPEN_VERSION, forwarding.NEWEST_ENVELOPE, zone_cache.VERSION, health.VERSION) == (0, 2, 1, 0)


def _body(frame: bytes) -> memoryview:
    view = memoryview(frame)[4:]
    return view[read_request_header(view).body_start :]
