"""CPU and memory of process trees, from the text of a fake /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.cli.bench.window import Memory, ProcessStat, ProcessUsage, parse_stat, parse_status, trees
from headrace.storage.errors import UnavailableError

STAT = (
    "{pid} ({name}) S {parent} 7 7 0 -1 4194304 100 0 0 0 {user} {system} {child_user} {child_system} 20 0 1 0 226350"
)
STATUS = (
    "Name:\tpostgres\nVmHWM:\t   99999 kB\nRssAnon:\t{anonymous} kB\nRssFile:\t  {file} kB\nRssShmem:\t {shared} kB\n"
)


class FakeProc:
    """Writes the files that the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").mkdir()
        (root / "meminfo").write_text("MemTotal: 1 kB\n")

    def put(self, pid: int, parent: int, ticks: tuple[int, int, int, int], memory: tuple[int, int, int]) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        names = ("user", "system", "child_user", "child_system")
        text = STAT.format(pid=pid, name="a (b) c", parent=parent, **dict(zip(names, ticks, strict=True)))
        (folder / "stat").write_text(text + "\n")
        sizes = dict(zip(("anonymous", "file", "shared"), memory, strict=True))
        (folder / "status").write_text(STATUS.format(**sizes))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """Two targets: process 10 with the children 11 and 12, and 13 below 12; process 20 alone."""
    fake = FakeProc(tmp_path)
    fake.put(10, 1, (100, 50, 7, 3), (1000, 500, 200))
    fake.put(11, 10, (10, 0, 0, 0), (300, 600, 900))
    fake.put(12, 10, (20, 5, 0, 0), (200, 100, 800))
    fake.put(13, 12, (5, 0, 0, 0), (1, 1, 1))
    fake.put(20, 1, (40, 2, 0, 0), (70, 30, 0))
    return fake


def test_a_name_with_blanks_and_parentheses_does_not_shift_the_fields() -> None:
    text = STAT.format(pid=9, name="a) S 8 (b", parent=4, user=1, system=2, child_user=4, child_system=8)
    assert parse_stat(text) == ProcessStat(parent=4, ticks=15)


def test_memory_is_in_bytes_and_zero_for_a_process_that_has_ended() -> None:
    assert parse_status(STATUS.format(anonymous=3, file=2, shared=1)) == Memory(3072, 2048, 1024)
    assert parse_status("Name:\tpostgres\nState:\tZ (zombie)\n") == Memory(0, 0, 0)


def test_the_cpu_of_a_tree_is_of_all_its_processes_and_of_children_that_ended(proc: FakeProc) -> None:
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    usage = ProcessUsage({"postgres": [10], "agent": [20]}, proc.root)
    assert usage.cpu_seconds() == {"postgres": 200 / ticks_per_second, "agent": 42 / ticks_per_second}


def test_shared_memory_and_files_count_once_for_each_tree(proc: FakeProc) -> None:
    usage = ProcessUsage({"postgres": [10], "agent": [20]}, proc.root)
    assert usage.memory_bytes() == {"postgres": (1501 + 600 + 900) * 1024, "agent": 100 * 1024}


def test_several_processes_of_a_kind_are_counted_together(proc: FakeProc) -> None:
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    usage = ProcessUsage({"agent": (10, 20)}, proc.root)
    assert usage.cpu_seconds() == {"agent": 242 / ticks_per_second}
    assert usage.memory_bytes() == {"agent": (1501 + 70 + 600 + 900) * 1024}


def test_a_child_that_ended_moves_its_time_to_its_parent(proc: FakeProc) -> None:
    usage = ProcessUsage({"postgres": [10]}, proc.root)
    before = usage.cpu_seconds()
    (proc.root / "11" / "stat").unlink()
    proc.put(10, 1, (100, 50, 17, 3), (1000, 500, 200))
    assert usage.cpu_seconds() == before


def test_a_target_that_ended_is_an_error_that_names_the_process() -> None:
    with pytest.raises(UnavailableError, match="pid=10"):
        trees({11: ProcessStat(10, 0)}, [11, 10])


def test_without_processes_nothing_is_read(tmp_path: Path) -> None:
    usage = ProcessUsage({}, tmp_path / "no proc here")
    assert usage.cpu_seconds() == {}
    assert usage.memory_bytes() == {}
