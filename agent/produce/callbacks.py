"""What the write path calls of the rest of the agent: the read path, the membership, load reports, what traces it.

Place: Callbacks are made by agent/serve/paths.py; the steps of the write path take them. A ProduceObserver is given
to the pipeline by the code that composes a process (cli/process/tracing.py); agent/serve/tracing/ implements it.
Invariant: none of the calls blocks. Without an observer the write path calls nothing for it. An observer changes no
answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from headrace.agent.produce.files import FileTrace, FlushedFile
from headrace.agent.produce.requests import PendingRequest
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.protocol.produce_codec import ProduceRequest
from headrace.protocol.request import Request


class ProduceObserver(Protocol):
    """Called on the event loop, in the order of a request's steps."""

    def pending(self, request: Request, produce: ProduceRequest) -> PendingRequest:
        """Make the answer of a request that was decoded: its own kind, which hears when it is given."""

    def appended(self, pending: PendingRequest) -> None:
        """Report that a batch of the request goes into the open file."""

    def settled(self, file: FlushedFile) -> None:
        """Every batch of a file has its answer."""


def _nothing() -> None:
    """The default of a callback that is not needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What the write path tells and asks the rest of the agent. None of them may block."""

    database_now_ms: Callable[[], int]
    """The database's clock, for the birth of file ids. UnavailableError while it is unknown."""
    on_closed: Callable[[FileTrace], None] = lambda trace: None
    """A buffer was closed: for load reports."""
    on_flushed: Callable[[uuid.UUID, bytes], None] = lambda file_id, body: None
    """A segment file has its bytes, in the bucket or for its commit: a cache may keep them. Not committed yet."""
    on_committed: Callable[[Sequence[FileCommit], Sequence[FileAnswer]], None] = lambda commits, answers: None
    """Something became readable: what was sent, and the answers to it."""
    committing: Callable[[Sequence[FileCommit]], AbstractContextManager[None]] = lambda commits: nullcontext()
    """Entered while a call that commits these files is under way."""
    on_fenced: Callable[[], None] = _nothing
    """The metastore does not know this agent's epoch: register again. Called once per refused call."""
    on_settled: Callable[[FileTrace], None] = lambda trace: None
    """A file and all its batches were answered: for load reports."""
    reaches_bucket: Callable[[], bool] = lambda: True
    """Whether the bucket answers this process, as far as is known."""
    log_start_offset: Callable[[int], int] = lambda partition_key: -1
    """A partition's log start as far as it is known here; -1 is Kafka's "unknown"."""
    count_received: Callable[[int, int, int], None] = lambda partition_key, size_bytes, records: None
    """Gets (partition key, bytes, records) of each committed batch (agent/cluster/topic_traffic.py)."""
