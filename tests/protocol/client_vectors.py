"""Requests of real clients, captured against a recording stub (vectors/client_requests.tsv).

Columns: label (client and what it did), API key, API name, version, the frame in hex without its length.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from headrace.protocol.frames import read_request_header

PATH = Path(__file__).parent / "vectors" / "client_requests.tsv"


class Vector(NamedTuple):
    label: str
    api_key: int
    api_name: str
    version: int
    frame: bytes

    @property
    def body(self) -> memoryview:
        """Everything after the header; right for APIs that Headrace has a row for."""
        frame = memoryview(self.frame)
        return frame[read_request_header(frame).body_start :]


@functools.cache
def vectors() -> tuple[Vector, ...]:
    """All of them, in file order."""
    rows = (line.split("\t") for line in PATH.read_text(encoding="utf-8").splitlines())
    return tuple(Vector(r[0], int(r[1]), r[2], int(r[3]), bytes.fromhex(r[4])) for r in rows)


def with_flipped_bits(vector: Vector, data: st.DataObject) -> bytes:
    """Its body with one to three bits flipped."""
    body = bytearray(vector.body)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(body)
