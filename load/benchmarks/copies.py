"""What moving bytes costs the kernel and memory at least, without Headrace: CPU seconds per GB of a copy.

Place: `python -m load copies`. These floors say what another way of reading the socket, of writing a file or of
sending one could gain at most. This process alone is counted; the other end of each socket is a separate process. The
variants take turns; the least of the rounds is shown, with the median.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import resource
import socket
import statistics
from collections import deque
from collections.abc import Callable
from pathlib import Path

import crc32c

from headrace.cli.process.heap import tune_allocator
from load.harness import Benchmark, BenchmarkRun

MIB = 1 << 20
TOTAL_BYTES = 256 * MIB
"""Moved by one variant in one round."""
FRAME_BYTES = 1_000_000
"""Bytes of a received request, and the pieces in which a file is read, sent and written."""
FILE_BYTES = 3 * FRAME_BYTES
KEPT_BYTES = 128 * MIB
"""Bytes that are kept, as many as in the fetch cache of an agent."""
READ_BYTES = (64 * 1024, 256 * 1024, MIB)

Work = Callable[[], None]


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _send(port: int) -> None:
    block = bytes(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(TOTAL_BYTES // MIB):
            connection.sendall(block)


def _read(port: int) -> None:
    buffer = bytearray(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass


def _connected(client: Callable[[int], None]) -> tuple[socket.socket, multiprocessing.process.BaseProcess]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = multiprocessing.get_context("fork").Process(target=client, args=(server.getsockname()[1],))
        process.start()
        return server.accept()[0], process


def receive(at_once: int, *, fresh: bool) -> Work:
    """Frames by reads of `at_once` bytes, each frame into memory mapped for it, or into the last one's."""

    def work() -> None:
        connection, process = _connected(_send)
        frame, left = mmap.mmap(-1, FRAME_BYTES), TOTAL_BYTES
        with connection:
            while left:
                if fresh:
                    frame.close()
                    frame = mmap.mmap(-1, FRAME_BYTES)
                filled = 0
                with memoryview(frame) as view:
                    while filled < min(FRAME_BYTES, left):
                        filled += connection.recv_into(view[filled:], min(at_once, FRAME_BYTES - filled))
                left -= filled
        process.join()

    return work


def write(directory: Path, *, joined: bool) -> Work:
    """Files of three pieces: the pieces joined and written, or written by one writev. Both are synced."""
    pieces = [memoryview(bytes([number]) * FRAME_BYTES) for number in range(FILE_BYTES // FRAME_BYTES)]

    def work() -> None:
        for _ in range(TOTAL_BYTES // FILE_BYTES):
            file = os.open(directory / "written", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            done = os.write(file, b"".join(pieces)) if joined else os.writev(file, pieces)
            assert done == FILE_BYTES
            os.fsync(file)
            os.close(file)

    return work


def send(stored: Path, *, copied: bool) -> Work:
    """A file's pieces to a socket: read and sent, or by sendfile."""

    def work() -> None:
        connection, process = _connected(_read)
        file, position = os.open(stored, os.O_RDONLY), 0
        with connection:
            while position < TOTAL_BYTES:
                if not copied:
                    position += os.sendfile(connection.fileno(), file, position, min(MIB, TOTAL_BYTES - position))
                    continue
                piece = memoryview(os.pread(file, MIB, position))
                position += len(piece)
                while piece:
                    piece = piece[os.writev(connection.fileno(), [piece]) :]
        os.close(file)
        process.join()

    return work


def send_checked(stored: Path, *, kept_bytes: int, mapped: bool) -> Work:
    """A file's pieces to a socket, after a check of their CRC; the last `kept_bytes` of them stay in memory."""

    def piece_at(file: int, position: int) -> memoryview:
        if mapped:
            return memoryview(mmap.mmap(file, MIB, prot=mmap.PROT_READ, offset=position))
        piece = bytearray(MIB)
        os.preadv(file, [piece], position)
        return memoryview(piece)

    def work() -> None:
        connection, process = _connected(_read)
        file, kept = os.open(stored, os.O_RDONLY), deque[memoryview](maxlen=kept_bytes // MIB)
        with connection:
            for position in range(0, TOTAL_BYTES, MIB):
                piece = piece_at(file, position)
                kept.append(piece)
                crc32c.crc32c(piece)
                while piece:
                    piece = piece[os.writev(connection.fileno(), [piece]) :]
        os.close(file)
        process.join()

    return work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--rounds", type=int, default=7)


def benchmark(run: BenchmarkRun) -> None:
    tune_allocator()
    directory, rounds = run.place, run.args.rounds
    (directory / "stored").write_bytes(bytes(TOTAL_BYTES))
    variants = {
        f"receive, {at_once // 1024} KiB a read, {'fresh' if fresh else 'reused'} memory": receive(at_once, fresh=fresh)
        for fresh in (True, False)
        for at_once in READ_BYTES
    }
    variants["write 3 MB and sync, joined"] = write(directory, joined=True)
    variants["write 3 MB and sync, writev"] = write(directory, joined=False)
    variants["send a file, pread and writev"] = send(directory / "stored", copied=True)
    stored = directory / "stored"
    variants["send a file with CRC, read, kept"] = send_checked(stored, kept_bytes=KEPT_BYTES, mapped=False)
    variants["send a file with CRC, read, not kept"] = send_checked(stored, kept_bytes=4 * MIB, mapped=False)
    variants["send a file with CRC, mapped, kept"] = send_checked(stored, kept_bytes=KEPT_BYTES, mapped=True)
    variants["send a file with CRC, mapped, not kept"] = send_checked(stored, kept_bytes=4 * MIB, mapped=True)
    variants["send a file, sendfile"] = send(directory / "stored", copied=False)
    spent: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, work in variants.items():
            before = cpu_seconds()
            work()
            spent[name].append((cpu_seconds() - before) / (TOTAL_BYTES / 1e9))
    for name, figures in spent.items():
        run.row(name, {"s/GB least": min(figures), "s/GB median": statistics.median(figures)})


BENCHMARK = Benchmark(
    "copies of bytes by the kernel: the least cost of receiving, writing and sending", benchmark, add_arguments
)
