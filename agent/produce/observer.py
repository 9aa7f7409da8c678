"""What traces the write path, if anything does: the calls that it gets.

Place: given to the pipeline by the code that composes a process (cli/process/tracing.py); agent/serve/tracing/
implements it.
Invariant: without an observer the write path calls nothing for it. An observer changes no answer and never blocks.
"""

from __future__ import annotations

from typing import Protocol

from headrace.agent.produce.flush_queue import FlushedFile
from headrace.agent.produce.pending import PendingRequest
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
