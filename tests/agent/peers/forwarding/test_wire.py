"""Openings, envelopes and answers: what was written is read, and nothing else is."""

from __future__ import annotations

import hmac
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.peers.forwarding.wire import (
    NONCE_BYTES,
    Envelope,
    EnvelopeKind,
    ForwardOutcome,
    Opening,
    decode_answer,
    decode_envelope,
    decode_opened,
    decode_opening,
    encode_answer,
    encode_envelope,
    encode_opened,
    encode_opening,
    link_key,
)
from headrace.protocol.frames import read_request_header
from headrace.storage.errors import CorruptError, InvalidError

SECRET = b"s" * 32
KEY = link_key(SECRET, b"m" * 32, b"n" * NONCE_BYTES)
TEXT = st.text(max_size=300)
ENVELOPES = st.builds(
    Envelope,
    st.sampled_from(EnvelopeKind),
    *[st.integers(-(2**63), 2**63 - 1)] * 2,
    *[st.integers(-(2**15), 2**15 - 1)] * 2,
    st.integers(-(2**31), 2**31 - 1),
    TEXT,
    TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.binary(max_size=300),
)


def _body(frame: bytes) -> memoryview:
    view = memoryview(frame)[4:]
    return view[read_request_header(view).body_start :]


@given(ENVELOPES, st.integers(1, 2**31 - 1))
def test_an_envelope_is_read_as_it_was_written(envelope: Envelope, number: int) -> None:
    body = _body(encode_envelope(envelope, KEY, number))
    assert decode_envelope(body, KEY, number) == envelope
    for key, other in ((KEY, number % 7 + 8), (link_key(SECRET, b"m" * 32, b"o" * NONCE_BYTES), number)):
        if (key, other) != (KEY, number):
            with pytest.raises(InvalidError, match="not from the agent"):
                decode_envelope(body, key, other)


def test_every_changed_byte_of_an_envelope_is_refused() -> None:
    envelope = Envelope(EnvelopeKind.REQUEST, 5, 6, 12, 4, 7, "PLAINTEXT", "10.0.0.1:5", "client", None, b"body")
    body = bytes(_body(encode_envelope(envelope, KEY, 9)))
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= 0x40
        with pytest.raises(InvalidError):
            decode_envelope(memoryview(bytes(changed)), KEY, 9)
        with pytest.raises(InvalidError):
            decode_envelope(memoryview(body[:position]), KEY, 9)


def test_hostile_bytes_with_the_right_key_are_refused_too() -> None:
    """A bug in another agent must not stop this one."""
    rng, refused = random.Random(1), 0
    for _ in range(3000):
        resigned = _resigned(rng.randbytes(rng.randrange(80)), 1)
        try:
            decode_envelope(memoryview(resigned), KEY, 1)
        except InvalidError:
            refused += 1
    assert refused > 1000, "and nothing else was raised"


def _resigned(rest: bytes, number: int) -> bytes:
    return hmac.digest(KEY, b">" + number.to_bytes(4, "big") + rest, "sha256") + rest


@given(st.sampled_from(ForwardOutcome), st.lists(st.binary(max_size=100), max_size=3), st.integers(1, 2**31 - 1))
def test_an_answer_belongs_to_its_envelope(outcome: ForwardOutcome, buffers: list[bytes], number: int) -> None:
    frame = memoryview(b"".join(encode_answer(number, KEY, outcome, buffers)))
    assert decode_answer(frame, KEY, number) == (outcome, b"".join(buffers))
    with pytest.raises(CorruptError):
        decode_answer(frame, KEY, number - 1)
    for position in random.Random(number).sample(range(len(frame)), 5):
        changed = bytearray(frame)
        changed[position] ^= 1
        with pytest.raises(CorruptError):
            decode_answer(memoryview(changed), KEY, number)
        with pytest.raises(CorruptError):
            decode_answer(frame[:position], KEY, number)


def test_an_opening_and_its_answer_need_the_secret() -> None:
    opening = Opening(1_700_000_000_000, 1, 2, 1, b"n" * NONCE_BYTES)
    frame, mac = encode_opening(opening, SECRET, 3)
    assert decode_opening(_body(frame), SECRET) == (opening, mac)
    opened = memoryview(encode_opened(3, SECRET, mac, 1, b"o" * NONCE_BYTES))
    assert decode_opened(opened, SECRET, mac) == (1, b"o" * NONCE_BYTES)
    for secret, other_mac in ((b"other", mac), (SECRET, b"x" * 32)):
        with pytest.raises(CorruptError):
            decode_opened(opened, secret, other_mac)
    with pytest.raises(InvalidError):
        decode_opening(_body(frame), b"other")
    body = bytes(_body(frame))
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= 1
        with pytest.raises(InvalidError):
            decode_opening(memoryview(bytes(changed)), SECRET)
        with pytest.raises(InvalidError):
            decode_opening(memoryview(body[:position]), SECRET)
