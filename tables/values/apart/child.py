"""The process that opens values for a worker of tables, until the worker closes the connection or ends it.

    python -m headrace.tables.values.apart.child SOCKET PROGRESS      file descriptors

Place: started by process.py. It opens chunks as a worker would (values/open.py), and asks the schema registry.
Invariant: the kernel ends the process if one record takes more CPU time than it may, also inside of a library: the
signal of the timer is not handled. Which row was open then is in the file PROGRESS. It holds nothing that another
process waits for, and commits nothing, so it can end at any point.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import sys
import time

import msgspec
import pyarrow as pa

from headrace.storage.errors import HeadraceError
from headrace.tables.values.apart.messages import (
    CONVERTING,
    IDLE,
    OUT_OF_MEMORY,
    PROGRESS,
    OpeningAnswer,
    OpeningFrame,
    OpeningRequest,
    receive,
    send,
)
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import ChunkOpener, Tolerance

MEMORY_BYTES = 1024**3
"""What a chunk may take on top of what the process has at its start."""
SECONDS_PER_BYTE = 5e-6
NICE = 5
"""Agents and compaction on the same machine come first."""
_NOTHING = pa.table({})


class TimedWatch:
    """Implements RecordWatch with the timer of the kernel."""

    def __init__(self, progress: mmap.mmap, asked: OpeningRequest) -> None:
        self._progress, self._asked = progress, asked
        self._refused = {(each.partition, each.offset): each.reason for each in asked.refused}
        self._ends = time.process_time() + asked.chunk_seconds

    def begin(self, row: int, size_bytes: int) -> None:
        PROGRESS.pack_into(self._progress, 0, CONVERTING if row < 0 else row)
        signal.setitimer(signal.ITIMER_PROF, self._asked.record_seconds + SECONDS_PER_BYTE * size_bytes)

    def why_refused(self, partition: int, offset: int) -> str:
        return self._refused.get((partition, offset), "")

    def is_over(self, row: int) -> bool:
        if self._asked.rows_max is not None and row >= self._asked.rows_max:
            return True
        return time.process_time() >= self._ends

    def end(self) -> None:
        """The chunk is opened."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        PROGRESS.pack_into(self._progress, 0, IDLE)


def main(argv: list[str]) -> int:
    """Serve requests until the worker ends."""
    peer = socket.socket(fileno=int(argv[0]))
    progress = mmap.mmap(int(argv[1]), PROGRESS.size)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.nice(NICE)
    _be_killed_first()
    formats: dict[str, ValueFormats] = {}
    _limit_memory()
    while True:
        try:
            frame = receive(peer)
        except (EOFError, OSError):
            return 0
        asked = msgspec.msgpack.decode(frame.message, type=OpeningRequest)
        watch = TimedWatch(progress, asked)
        try:
            if asked.registry_url not in formats:
                formats[asked.registry_url] = ValueFormats(asked.registry_url)
            answer, schema, rows = _answer(asked, frame, formats[asked.registry_url], watch)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except HeadraceError as error:
            answer, schema, rows = OpeningAnswer(error=type(error).__name__, text=str(error)), pa.schema([]), _NOTHING
        watch.end()
        send(peer, answer, schema, rows)


def _answer(
    asked: OpeningRequest, frame: OpeningFrame, formats: ValueFormats, watch: TimedWatch
) -> tuple[OpeningAnswer, pa.Schema, pa.Table]:
    form = formats.opened(asked.value_format, asked.value_schema)
    opener = ChunkOpener(form, frame.schema, Tolerance(asked.tolerance), watch, asked.batch_rows)
    if asked.wants_reasons:
        return OpeningAnswer(reasons=tuple(opener.reasons(frame.rows))), pa.schema([]), _NOTHING
    opened = opener.open(frame.rows)
    dead = tuple((each.partition, each.start, each.end) for each in opened.dead)
    cuts = tuple((partition, cut.offset, cut.reason) for partition, cut in opened.cuts.items())
    return OpeningAnswer(dead, cuts), pa.schema(list(opened.columns)), opened.rows


def _be_killed_first() -> None:
    """Let the machine end this process first if it runs out of memory: it can be started again."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass  # not Linux, or not permitted: the limit below is enough


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[5]) * resource.getpagesize()
    except OSError:
        return  # not Linux: the limits of values and chunks are enough for what is known
    limit = used + MEMORY_BYTES
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
