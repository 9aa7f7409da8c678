"""The requests that the fuzzer sends: well-formed, captured and altered, adversarial, and noise.

Place: between bodies.py and senders.py.
Invariant: the same seed gives the same frames in the same order.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

from headrace.protocol.api_versions import APIS
from tests.fuzz.bodies import well_formed

CAPTURES = Path(__file__).parents[2] / "tests" / "protocol" / "vectors" / "client_requests.tsv"
"""Requests of real clients: label, API key, API name, version, frame in hex."""
EACH = 6
_HEADER_BYTES = 10
_COUNTS = (
    b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\x98\x96\x80", b"\0\0\x27\x10",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x81\x80\x80\x80\x01", b"\xff\xff\x7f",
)  # fmt: skip
"""2^31-1, -2^31, ten million and ten thousand as int32; as varints: the largest ones, and one with needless bytes."""
_LENGTHS = (2**31 - 1, 2**30, 100_000_000, 9_000_000, 0, -1, -(2**31), 1, 7)

Attack = Callable[["RequestSource"], bytes]


class RequestSource:
    """An endless supply."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.captured = [bytes.fromhex(line.split("\t")[4]) for line in CAPTURES.read_text("utf-8").splitlines()]
        self.formed = well_formed(self.rng, EACH)
        self._next = 0

    def well_formed(self, count: int) -> bytes:
        """Make so many requests, each of the next API and version in turn."""
        chosen = [self.formed[(self._next + at * EACH) % len(self.formed)] for at in range(count)]
        self._next += count * EACH + self.rng.randint(0, 1)
        return b"".join(map(framed, chosen))

    def some(self) -> bytearray:
        """A captured or a well-formed request, without its length."""
        return bytearray(self.rng.choice(self.captured if self.rng.random() < 0.5 else self.formed))


def framed(data: bytes | bytearray) -> bytes:
    """Return the request with its length."""
    return struct.pack(">i", len(data)) + data


def captured(frames: RequestSource) -> bytes:
    """Return a request that a real client sent."""
    return framed(frames.rng.choice(frames.captured))


def flipped_bits(frames: RequestSource) -> bytes:
    """One to four bits are others."""
    data, rng = frames.some(), frames.rng
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return framed(data)


def spliced(frames: RequestSource) -> bytes:
    """The start of one request and the end of another."""
    one, other = frames.some(), frames.some()
    return framed(one[: frames.rng.randrange(len(one))] + other[frames.rng.randrange(len(other)) :])


def other_version(frames: RequestSource) -> bytes:
    """The body of another version or API."""
    data, api = frames.some(), frames.rng.choice(list(APIS.values()))
    data[:4] = struct.pack(">hh", api.key, frames.rng.randint(api.min_version - 1, api.max_version + 1))
    return framed(data)


def truncated(frames: RequestSource) -> bytes:
    """The length says that the frame is whole; its fields say otherwise."""
    data = frames.some()
    return framed(data[: frames.rng.randrange(len(data))])


def huge_count(frames: RequestSource) -> bytes:
    """Somewhere in the body is a count of millions."""
    data = frames.some()
    count = frames.rng.choice(_COUNTS)
    at = frames.rng.randrange(_HEADER_BYTES, max(len(data), _HEADER_BYTES + 1))
    data[at : at + len(count)] = count
    return framed(data)


def many_elements(frames: RequestSource) -> bytes:
    """A small piece of the body, thousands of times: arrays in arrays, as far as the decoder follows."""
    data, rng = frames.some(), frames.rng
    at = rng.randrange(_HEADER_BYTES, max(len(data), _HEADER_BYTES + 1))
    piece = bytes(data[at : at + rng.randint(1, 12)]) or b"\2"
    data[at:at] = rng.choice(_COUNTS) + piece * (rng.choice((1_000, 30_000)) // len(piece))
    return framed(data)


def tagged_fields(frames: RequestSource) -> bytes:
    """Tagged fields at the end: many, repeated, out of order, longer than the frame."""
    data, rng = frames.some(), frames.rng
    count = rng.choice((1, 100, 127))
    field = rng.choice((b"\1\0", b"\xff\xff\xff\xff\x0f\0", b"\2\x05" + bytes(5), b"\0\xff\xff\x7f"))
    data[-1:] = bytes([count]) + field * count
    return framed(data)


def false_length(frames: RequestSource) -> bytes:
    """The declared length is another than the frame's."""
    return struct.pack(">i", frames.rng.choice(_LENGTHS)) + bytes(frames.some())


def noise(frames: RequestSource) -> bytes:
    """Random bytes, framed or not."""
    data = frames.rng.randbytes(frames.rng.randint(1, 300))
    return framed(data) if frames.rng.random() < 0.5 else data


def noise_for_an_api(frames: RequestSource) -> bytes:
    """A valid header, and random bytes."""
    api = frames.rng.choice(list(APIS.values()))
    version = frames.rng.randint(api.min_version, api.max_version)
    header = struct.pack(">hhih4s", api.key, version, 7, 4, b"fuzz")
    return framed(header + bytes(version >= api.first_flexible) + frames.rng.randbytes(frames.rng.randint(0, 200)))


ATTACKS: tuple[Attack, ...] = (
    captured, flipped_bits, spliced, other_version, truncated, huge_count, many_elements, tagged_fields,
    false_length, noise, noise_for_an_api,
)  # fmt: skip
