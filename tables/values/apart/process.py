"""Opens values in separate processes, so that a record that ends one of them does not end the worker.

Place: in place of ChunkOpener in the worker (values/formats.py), with the same answers; one pool per worker of
tables (ValueFormats). Blocks: callers use a thread.

    pool -> an idle process, or a new one, of at most `size` -> one request, one answer
    it ends instead: EndedError with the row that was open

Invariant of processes: at most `size` processes, however many tables there are. A process that ended is replaced by
the next request. `close` ends all of them, also one that is at work.

    chunk -> process -> opened
                     -> ended at a row: that record does not fit; the chunk again, without it

Invariant of chunks: as ChunkOpener. A chunk ends: each repetition gives up a record, and after Budget.chunk the rest
of the chunk is for the next one. After a restart this holds as well: what was given up is decided by the table's
commits, and what was not yet costs its time once more. If a process may have ended for another reason than the
record, the record is opened again, and given up if that ends a process, too.
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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.scan import errors as scan_errors
from headrace.storage import errors as storage_errors
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.tables import errors as table_errors
from headrace.tables.state import Definition, OffsetGap
from headrace.tables.values.apart.messages import (
    IDLE,
    OUT_OF_MEMORY,
    PROGRESS,
    EndedError,
    OpeningAnswer,
    OpeningFrame,
    OpeningRequest,
    Refused,
    receive,
    send,
)
from headrace.tables.values.open import Cut, OpenedChunk, Tolerance, ValueOpener, value_columns

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


class Budget(NamedTuple):
    """CPU seconds that opening may take. `record`: for one without a byte."""

    record: float = 5.0
    chunk: float = 20.0


BUDGET = Budget()


@dataclass(slots=True)
class ApartOpener:
    """Implements ValueOpener for a table with this schema, as pyiceberg has it in Arrow."""

    pool: OpeningPool
    registry_url: str
    definition: Definition
    schema: pa.Schema
    budget: Budget = BUDGET
    monotonic: Callable[[], float] = time.monotonic
    _suspected: set[tuple[int, int]] = field(default_factory=set)
    """Records at which a process ended once, perhaps for another reason."""

    @property
    def columns(self) -> pa.StructType:
        return value_columns(self.schema)

    def open(self, raw: pa.Table) -> OpenedChunk:
        answer, frame = self._ask(raw, wants_reasons=False)
        dead = tuple(OffsetGap(*each) for each in answer.dead)
        cuts = {partition: Cut(offset, reason) for partition, offset, reason in answer.cuts}
        rows = frame.rows.cast(self.schema) if frame.rows.num_columns else self.schema.empty_table()
        return OpenedChunk(pa.struct(list(frame.schema)), rows, dead, cuts)

    def reasons(self, raw: pa.Table) -> list[str]:
        answer, _ = self._ask(raw, wants_reasons=True)
        return list(answer.reasons)

    def tolerant(self) -> ValueOpener:
        return replace(self, definition=replace(self.definition, tolerance=Tolerance.ALL.value))

    def _ask(self, raw: pa.Table, *, wants_reasons: bool) -> tuple[OpeningAnswer, OpeningFrame]:
        """Have a process open the rows; return its answer, and the frame with the opened rows.

        If the process ends instead, another one is asked, without the records that are given up by now. After the
        chunk's budget it opens only the rows up to the one at which the process ended. Raises the error of the answer;
        UnavailableError if processes end twice while no record is open.
        """
        budget_ends_at = self.monotonic() + self.budget.chunk
        request = self._request(wants_reasons=wants_reasons)
        while True:
            given_up = self.pool.known(self._topic)
            refused = tuple(Refused(partition, offset, why) for (partition, offset), why in given_up.items())
            request = msgspec.structs.replace(request, refused=refused)
            try:
                answer, frame = self.pool.ask(request, self.schema, raw)
            except EndedError as ended:
                request = self._after(ended, raw, request, is_over=self.monotonic() > budget_ends_at)
                continue
            if answer.error:
                raise _error_of(answer)
            return answer, frame

    def _request(self, *, wants_reasons: bool) -> OpeningRequest:
        definition = self.definition
        return OpeningRequest(
            definition.value_format,
            definition.value_schema,
            self.registry_url,
            definition.tolerance,
            record_seconds=self.budget.record,
            chunk_seconds=self.budget.chunk,
            wants_reasons=wants_reasons,
        )

    @property
    def _topic(self) -> str:
        """What names the topic, and how its values are opened."""
        return f"{self.definition.topic_id} {self.definition.value_format} {hash(self.definition.value_schema)}"

    def _after(self, ended: EndedError, raw: pa.Table, request: OpeningRequest, *, is_over: bool) -> OpeningRequest:
        """Return what to ask next."""
        if ended.row < 0:
            if request.batch_rows == 1:
                raise UnavailableError(f"{ended.reason}, and no record was open")
            return msgspec.structs.replace(request, batch_rows=1)
        place = raw.column("partition")[ended.row].as_py(), raw.column("offset")[ended.row].as_py()
        if ended.is_certain or place in self._suspected:
            self.pool.remember((self._topic, *place), ended.reason)
        self._suspected.add(place)
        return msgspec.structs.replace(request, rows_max=ended.row + 1) if is_over else request


def _error_of(answer: OpeningAnswer) -> HeadraceError:
    """The error that the process had. Only Headrace's come as an answer."""
    kinds = (getattr(module, answer.error, None) for module in (table_errors, scan_errors, storage_errors))
    kind: Any = next(filter(None, kinds), UnavailableError)
    found: HeadraceError = kind(answer.text)
    return found
