"""Processes that open values, and what is known of those that ended.

    pool -> an idle process, or a new one, of at most `size` -> one request, one answer
    it ends instead: EndedError with the row that was open

Place: under opener.py; one pool per worker of tables (ValueFormats). Blocks: callers use a thread.
Invariant: at most `size` processes, however many tables there are. A process that ended is replaced by the next
request. `close` ends all of them, also one that is at work.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import pyarrow as pa

from headrace.storage.errors import UnavailableError
from headrace.tables.values.apart.ending import IDLE, OUT_OF_MEMORY, PROGRESS, EndedError
from headrace.tables.values.apart.messages import OpeningAnswer, OpeningFrame, OpeningRequest, receive, send

SIZE = 2
"""Processes of one worker: one table with values that take long leaves the other one to the rest."""
STALL_SECONDS = 300.0
"""A process that opens no further row for so long is ended: it waits, as it takes no CPU time."""
KNOWN_MAX = 10_000
_ENVIRON = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
"""Arrow's other allocators reserve memory that counts, and its threads are of no use for one chunk."""
_POLL_SECONDS = 1.0

Place = tuple[str, int, int]
"""A record: what names its topic, its partition, its offset."""


class OpeningProcess:
    """One process. `monotonic`: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._peer, other = socket.socketpair()
        self._peer.settimeout(_POLL_SECONDS)
        with tempfile.TemporaryFile() as file, other:
            file.truncate(PROGRESS.size)
            self._progress = mmap.mmap(file.fileno(), PROGRESS.size)
            PROGRESS.pack_into(self._progress, 0, IDLE)
            handed = (other.fileno(), file.fileno())
            command = [sys.executable, "-m", "headrace.tables.values.apart.child", *map(str, handed)]
            environ = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **_ENVIRON}
            self._process = subprocess.Popen(
                command, pass_fds=handed, env=environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._since = 0.0
        self._row: int | None = None

    def ask(self, request: OpeningRequest, schema: pa.Schema, rows: pa.Table) -> OpeningFrame:
        """EndedError instead of an answer."""
        self._since, self._row = self._monotonic(), None
        try:
            self._peer.settimeout(STALL_SECONDS)
            send(self._peer, request, schema, rows)
            self._peer.settimeout(_POLL_SECONDS)
            return receive(_Patient(self._peer, self._require_progress))
        except (OSError, EOFError) as error:
            raise self._ended() from error

    def _require_progress(self) -> None:
        """End a process that has not opened a further row for long."""
        row, now = self._open_row(), self._monotonic()
        if row != self._row:
            self._row, self._since = row, now
        elif now - self._since > STALL_SECONDS:
            self._process.kill()

    def _open_row(self) -> int:
        found: int = PROGRESS.unpack_from(self._progress, 0)[0]
        return found

    def _ended(self) -> EndedError:
        self._process.kill()
        status, row = self._process.wait(), self._open_row()
        self.close()
        if status == -signal.SIGPROF:
            return EndedError(row, "opening the value takes too long", is_certain=True)
        if status == OUT_OF_MEMORY:
            return EndedError(row, "opening the value takes too much memory", is_certain=True)
        return EndedError(row, f"the process that opens the value ends: status {status}", is_certain=False)

    def end(self) -> None:
        """End it; a thread that waits for it gets an EndedError."""
        self._process.kill()

    def close(self) -> None:
        """End it, and forget it."""
        self._process.kill()
        self._process.wait()
        self._peer.close()
        self._progress.close()


class _Patient:
    """A socket that is waited for; `check` ends the process at its other side if that takes too long."""

    def __init__(self, peer: socket.socket, check: Callable[[], None]) -> None:
        self._peer, self._check = peer, check

    def recv_into(self, buffer: memoryview, /) -> int:
        while True:
            try:
                return self._peer.recv_into(buffer)
            except TimeoutError:
                self._check()


class OpeningPool:
    """The processes of one worker. `known`: records that ended one, so that they end no second one."""

    def __init__(self, size: int = SIZE) -> None:
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[OpeningProcess] = []
        self._busy: set[OpeningProcess] = set()
        self._is_closed = False
        self._known: OrderedDict[Place, str] = OrderedDict()
        self.ended = 0
        """Processes that ended at a record."""

    def ask(self, request: OpeningRequest, schema: pa.Schema, rows: pa.Table) -> tuple[OpeningAnswer, OpeningFrame]:
        """EndedError; UnavailableError: the pool is closed."""
        with self._free:
            process = self._taken()
            try:
                frame = process.ask(request, schema, rows)
            except BaseException:
                with self._lock:
                    self._busy.discard(process)
                    self.ended += 1
                process.close()
                self._require_open()
                raise
            with self._lock:
                self._busy.discard(process)
                self._idle.append(process)
            return msgspec.msgpack.decode(frame.message, type=OpeningAnswer), frame

    def _taken(self) -> OpeningProcess:
        self._require_open()
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or OpeningProcess()
        with self._lock:
            self._busy.add(process)
        return process

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the process ends: no value is opened any more")

    def remember(self, place: Place, reason: str) -> None:
        """Do not open this record again."""
        with self._lock:
            self._known[place] = reason
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def known(self, topic: str) -> dict[tuple[int, int], str]:
        """Return the records of a topic that are not opened, by partition and offset."""
        with self._lock:
            return {(place[1], place[2]): reason for place, reason in self._known.items() if place[0] == topic}

    def close(self) -> None:
        """End all processes; requests that wait fail."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for each in idle:
            each.close()
        for each in busy:
            each.end()
