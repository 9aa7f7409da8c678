"""Early flushes: as many as their budget allows, and only where closing a file gains something.

In any time a process closes at most time / linger files below the free size, and those of the budget (one more for
the file that was open when the time began): at most what can be saved + time * rate, and at most burst + time *
rate_max. Files closed for their size or by a drain are not counted. None is closed early while five files wait for
their answers, or while memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace.agent.produce.files import EARLY_REASONS, FileTrace, FlushReason
from headrace.agent.produce.flusher import EARLY_FILES_MAX
from headrace.agent.produce.pipeline import flush_limits
from tests.simulation.problems import Kind, Problem

if TYPE_CHECKING:
    from headrace.agent.produce.flush_policy import FlushLimits
    from tests.simulation.stored_log import StoredLog
    from tests.simulation.world import World

FILES_MAX = EARLY_FILES_MAX
"""Kept here, so that a bug cannot change what it is judged by."""


class Flush(NamedTuple):
    """`memory_was_short`: as the file was closed."""

    trace: FileTrace
    memory_was_short: bool


def check_flushes(world: World, logs: StoredLog) -> Iterator[Problem]:
    limits = flush_limits(world.plan.settings)
    for owner, flushes in world.flushes.items():
        yield from (Problem(Kind.FLUSHED_EARLY, f"process={owner} {what}") for what in _wrong(flushes, limits))


def _wrong(flushes: list[Flush], limits: FlushLimits) -> Iterator[str]:
    for number, (trace, memory_was_short) in enumerate(flushes):
        if trace.reason not in EARLY_REASONS:
            continue
        unsettled = sum(not other.trace.settled_at <= trace.closed_at for other in flushes[:number])
        if not limits.rate:
            yield f"closed early although that is switched off: at={trace.closed_at:.4f}"
        if unsettled >= FILES_MAX:
            yield f"closed early behind {unsettled} files: at={trace.closed_at:.4f}"
        if memory_was_short:
            yield f"closed early while memory is short: at={trace.closed_at:.4f}"
    counted = [
        trace.closed_at
        for trace, _ in flushes
        if trace.size_bytes < limits.free_bytes
        and trace.reason in (*EARLY_REASONS, FlushReason.LINGER)
        and not _was_inline(trace)
    ]
    for first, start in enumerate(counted):
        for count, end in enumerate(counted[first:], start=1):
            elapsed = end - start
            saved = elapsed * limits.rate + max(limits.saved_max, limits.burst)
            allowed = elapsed / limits.linger_s + min(saved, elapsed * limits.rate_max + limits.burst) + 1
            if count > allowed + 1e-6:
                yield f"{count} files in {elapsed:.4f} s, {allowed:.1f} are allowed"
                return


def _was_inline(trace: FileTrace) -> bool:
    """Its bytes were stored by its commit: no object was put, and none is paid for."""
    return trace.put_started_at == trace.stored_at
