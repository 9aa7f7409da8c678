"""Memory that the heap keeps: counted when it was unused for a minute, and given back then, not before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace.cli.process.heap import GIVEN_BACK_BYTES, LOOKS, IdleHeap, give_heap_back
from headrace.cli.process.heap import unused_heap_bytes as unused
from headrace.config.memory_budget import ALLOCATOR_BYTES, MIB, memory_budget
from headrace.config.settings import Settings
from tests.manual_clock import ManualClock


class ScriptedHeap:
    """`unused`: what the next looks find. Giving back leaves `kept` of it."""

    def __init__(self, kept: int = 0) -> None:
        self.unused: int | None = 0
        self.kept, self.given = kept, 0
        self.idle = IdleHeap(ManualClock(), lambda: self.unused, self._give_back)

    def look(self, *found: int | None) -> None:
        for self.unused in found:
            self.idle.look()

    def _give_back(self) -> None:
        self.given += 1
        self.unused = self.kept


def test_what_was_unused_for_a_minute_is_counted_and_given_back() -> None:
    heap = ScriptedHeap(kept=MIB)
    heap.look(*[90 * MIB] * (LOOKS - 2), 80 * MIB)
    assert (heap.idle.idle_bytes, heap.given) == (80 * MIB, 0)
    heap.look(95 * MIB)
    assert (heap.idle.idle_bytes, heap.given) == (MIB, 1)


def test_what_was_used_within_the_minute_stays() -> None:
    """A busy agent takes and frees the same memory for each flush: mapping it again would cost it CPU."""
    heap = ScriptedHeap()
    for _ in range(10):
        heap.look(*[200 * MIB] * (LOOKS - 1), GIVEN_BACK_BYTES - 1)
    assert heap.given == 0
    assert heap.idle.idle_bytes < ALLOCATOR_BYTES


def test_what_cannot_be_given_back_is_not_tried_each_minute() -> None:
    """Pieces smaller than a page stay resident."""
    heap = ScriptedHeap(kept=50 * MIB)
    heap.look(*[90 * MIB] * LOOKS)
    heap.look(*[50 * MIB] * LOOKS * 3)
    assert (heap.given, heap.idle.idle_bytes) == (1, 50 * MIB)
    heap.look(*[50 * MIB + GIVEN_BACK_BYTES] * LOOKS)
    assert heap.given == 2


def test_without_glibc_nothing_is_counted() -> None:
    heap = ScriptedHeap()
    heap.look(*[None] * LOOKS * 2)
    assert (heap.given, heap.idle.idle_bytes) == (0, 0)


def leave_pieces() -> None:
    """Free memory between pieces that are kept, as after a merge: the heap does not become shorter."""
    give_heap_back()
    before = unused()
    assert before is not None, "Linux with glibc"
    taken = [bytearray(3_000 + number % 2_000) for number in range(8_000)]
    kept, freed_bytes = taken[::50], sum(map(len, taken))
    del taken
    left = unused()
    assert left is not None
    assert left > freed_bytes // 2, "all of it is resident, and used by nothing"
    give_heap_back()
    assert (unused() or 0) < left - freed_bytes // 2
    assert kept


def test_a_merge_leaves_pieces_that_are_given_back() -> None:
    """Run it in a separate process: the heap of a long test run has holes already."""
    code = "from tests.cli.process.test_idle_heap import leave_pieces; leave_pieces()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_every_process_has_the_part() -> None:
    for role in ("broker", "controller", "compactor", "tables"):
        assert memory_budget(Settings(process_roles=role))["allocator"] == ALLOCATOR_BYTES


@pytest.mark.slow
def test_merges_one_larger_than_the_other_leave_the_same() -> None:
    """The merges of an agent in a separate process: with and without giving idle memory back."""
    command = [sys.executable, "-m", "tests.cli.process.merges_in_a_row"]
    left = {
        way: json.loads(subprocess.run([*command, way], check=True, capture_output=True).stdout)
        for way in ("kept", "given-back")
    }
    grown = {way: resident[-1] - resident[0] for way, resident in left.items()}
    assert grown["kept"] > 2 * GIVEN_BACK_BYTES, left
    assert grown["given-back"] < GIVEN_BACK_BYTES, left
