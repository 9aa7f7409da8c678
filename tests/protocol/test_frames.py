"""Frames come out the same however the network cuts them."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.frames import DIRECT_BYTES, FrameReader, read_request_header
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import frame
from tests.seeds import examples

LIMIT = 1024 * 1024
GROWN_BY_LARGE_FRAMES = """
from pathlib import Path
from headrace.cli.process.heap import tune_allocator
from headrace.protocol.frames import FrameHead, FrameReader

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

tune_allocator()
before, kept = pages(), []
for size in range(5_000_000, 25_000_000, 5_000_000):
    reader = FrameReader(100_000_000)
    reader.open(FrameHead(size, 0), memoryview(bytes(8)))
    vacant = reader.vacant()
    for page in range(0, len(vacant), 4096):
        vacant[page] = 1
    reader.filled(size - 8)
    frame = reader.take()
    kept.append(bytes(100_000))
    del reader, vacant, frame
print((pages() - before) * 4096)
"""
"""A program that prints by how much it grew. It keeps something behind each frame, as an agent does."""


def _feed(reader: FrameReader, data: bytes) -> list[memoryview]:
    """Return what a connection does with one read into the slab."""
    frames, rest = list[memoryview](), memoryview(data)
    while True:
        if reader.frame is not None:
            rest = reader.fill(rest)
        else:
            head, rest = reader.read_head(rest)
            if head is None:
                return frames
            rest = reader.open(head, rest)
        whole = reader.take()
        if whole is None:
            return frames
        frames.append(whole)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.lists(st.integers(1, 40), max_size=30))
def test_frames_do_not_depend_on_how_bytes_arrive(bodies: list[int], cuts: list[int]) -> None:
    stream = b"".join(frame(i, bytes([i]) * size) for i, size in enumerate(bodies))
    reader, seen, position = FrameReader(LIMIT), list[memoryview](), 0
    for cut in [*cuts, len(stream)]:
        seen += _feed(reader, stream[position : position + cut])
        position += cut
    assert b"".join(struct.pack(">i", len(f)) + bytes(f) for f in seen) == stream
    assert reader.frame is None


def test_a_frame_is_read_only_in_separate_memory() -> None:
    reader = FrameReader(LIMIT)
    slab = bytearray(frame(1, b"kept"))
    (first,) = _feed(reader, bytes(slab))
    slab[:] = bytes(len(slab))
    assert first.readonly
    assert bytes(first).endswith(b"kept")


def test_a_large_frame_is_read_into_directly() -> None:
    reader = FrameReader(LIMIT)
    data = frame(1, b"x" * (2 * DIRECT_BYTES))
    assert _feed(reader, data[:100]) == []
    vacant = reader.vacant()
    assert vacant is not None
    assert len(vacant) == len(data) - 100
    vacant[:] = data[100:]
    reader.filled(len(vacant))
    whole = reader.take()
    assert whole is not None
    assert bytes(whole) == data[4:]


def test_what_is_missing_of_a_small_frame_comes_with_the_next_ones() -> None:
    reader = FrameReader(LIMIT)
    assert _feed(reader, frame(1, b"x" * 100)[:50]) == []
    assert reader.vacant() is None


def test_the_memory_of_very_large_frames_goes_back_to_the_system() -> None:
    told = subprocess.run([sys.executable, "-c", GROWN_BY_LARGE_FRAMES], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 8_000_000


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, LIMIT + 1, 2**31 - 1])
def test_a_length_outside_the_limits_is_refused_before_anything_is_allocated(size: int) -> None:
    with pytest.raises(InvalidError, match="frame outside the limits"):
        FrameReader(LIMIT).read_head(memoryview(struct.pack(">ih", size, 0)))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">hhi", 3, 1, 1), id="no client id"),
        pytest.param(struct.pack(">hhih", 3, 1, 1, 100), id="client id longer than the frame"),
        pytest.param(struct.pack(">hhih", 3, 1, 1, -2), id="negative length"),
        pytest.param(struct.pack(">hhih2s", 3, 1, 1, 2, b"\xff\xff"), id="client id not utf-8"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\x0f", id="2^32-1 header tags"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -1), id="no header tags in a flexible version"),
    ],
)
def test_a_malformed_header_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidError, match="malformed request header"):
        read_request_header(memoryview(data))


def test_a_client_may_have_no_name() -> None:
    header = read_request_header(memoryview(struct.pack(">hhih", 3, 1, 9, -1)))
    assert header == (3, 1, 9, None, 10)
