"""What the plugins of a run do: units, tools, limits, progress, reports of failures."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from tests.house import compiling, limits
from tests.house.failures import LINES_KEPT, last_lines
from tests.house.process_cpu import ProcessTree
from tests.house.progress import Progress
from tests.house.units import mixed, unit_of
from tests.tools.plan import VARIABLE, ToolPlan

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(folder: Path, test: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests in a separate process, with the plugins under test and nothing else of this repository."""
    (folder / "test_it.py").write_text(textwrap.dedent(test))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    return subprocess.run(
        [*command, *flags, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tests_of_a_file_run_in_one_process(tmp_path: Path) -> None:
    test = """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", range(8))
        def test_writes_its_process(number):
            pathlib.Path(__file__).with_name(f"{number}.pid").write_text(str(os.getpid()))
    """
    done = run_pytest(tmp_path, test, "-n", "2", "--dist", "loadgroup", "-p", "tests.house.units")
    assert done.returncode == 0, done.stdout
    assert len(list(tmp_path.glob("*.pid"))) == 8
    assert len({path.read_text() for path in tmp_path.glob("*.pid")}) == 1


def test_a_folder_with_one_cluster_is_one_unit() -> None:
    assert unit_of("tests/compat/test_quotas.py::test_a") == unit_of("tests/compat/test_codec.py::test_b")
    assert unit_of("tests/faults/test_zones.py::test_a") == "tests/faults/test_zones.py"


def test_units_that_wait_are_spread_over_the_run() -> None:
    seconds = {f"tests/faults/test_{number}.py": 10.0 for number in range(5)}
    seconds |= {f"tests/metastore/test_{number}.py": 1.0 for number in range(20)} | {"tests/agent/test_long.py": 5.0}
    places = mixed(seconds)
    order = sorted(seconds, key=lambda unit: places[unit])
    kinds = ["waits" if unit.startswith("tests/faults") else "computes" for unit in order]
    assert order.index("tests/agent/test_long.py") < order.index("tests/metastore/test_0.py")
    assert {kinds[start : start + 6].count("waits") for start in range(2, 20)} == {1}


def test_what_a_plan_leaves_out_stays_left_out(tmp_path: Path) -> None:
    plan = ToolPlan.write(tmp_path / "plan", {"there": None, "away": "needs away"}, present=["there"])
    assert plan.wait_for("there") is None
    plan.settle("away")
    assert plan.wait_for("away") == "needs away"
    assert not plan.has("away")


def test_a_test_waits_for_what_a_plan_promises(tmp_path: Path) -> None:
    plan = ToolPlan.write(tmp_path / "plan", {"kafka": None, "kcat": None}, present=[])
    assert plan.is_waiting("kafka")
    assert plan.promised() == {"kafka", "kcat"}
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.extend(map(plan.wait_for, ("kafka", "kcat"))))
    waiting.start()
    plan.settle("kafka")
    plan.settle("kcat", "no index")
    waiting.join()
    assert found == [None, "needs kcat (no index)"]
    assert (plan.has("kafka"), plan.has("kcat")) == (True, False)


def test_a_test_that_needs_a_tool_is_skipped_by_its_name(tmp_path: Path) -> None:
    plan = ToolPlan.write(tmp_path / "plan", {"kafka": "needs kafka", "kcat": None}, present=["kcat"])
    test = """
        import pytest

        @pytest.mark.needs("kcat")
        def test_runs(): pass

        @pytest.mark.needs("kcat", "kafka")
        def test_is_skipped(): pass
    """
    done = run_pytest(tmp_path, test, "-p", "tests.house.needs", "-rs", **{VARIABLE: str(plan.folder)})
    assert "1 passed, 1 skipped" in done.stdout
    assert "needs kafka" in done.stdout


def test_a_loop_without_an_end_fails_by_its_cpu_time(tmp_path: Path) -> None:
    """The loop runs in a child: the limit counts the whole tree."""
    test = """
        import subprocess, sys
        from tests.house import limits
        limits.CPU_SECONDS_MAX = limits._LOOK_SECONDS = 0.3

        def test_never_ends():
            child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                child.wait()
            finally:
                child.kill()
    """
    done = run_pytest(tmp_path, test, "-p", "tests.house.limits", "--timeout", "600")
    assert "more CPU time than a test may" in done.stdout, done.stdout
    assert done.returncode == 1


def test_a_test_that_does_not_end_with_its_time_ends_with_its_worker(tmp_path: Path) -> None:
    """asyncio.run waits for the thread. The next worker runs all other tests that are left, and none a second time."""
    (tmp_path / "test_before.py").write_text("def test_runs(): pass\n")
    (tmp_path / "test_later.py").write_text("def test_runs(): pass\n")
    test = """
        import asyncio, threading
        from tests.house import limits
        limits._LOOK_SECONDS = limits.WALL_SECONDS_TO_END = 0.2

        async def hangs():
            await asyncio.to_thread(threading.Event().wait)

        def test_hangs():
            asyncio.run(hangs())

        def test_runs():
            pass
    """
    flags = (
        "-n",
        "1",
        "--dist",
        "loadgroup",
        "-p",
        "tests.house.units",
        "-p",
        "tests.house.limits",
        "--timeout",
        "0.5",
    )
    done = run_pytest(tmp_path, test, *flags)
    assert "crashed while running" in done.stdout, done.stdout
    assert "1 failed, 3 passed" in done.stdout, done.stdout


def test_a_limit_is_far_from_what_tests_take() -> None:
    assert limits.CPU_SECONDS_MAX >= 5 * 20


def test_a_tree_counts_children_and_what_they_leave_behind() -> None:
    """The child starts another process, and ends before it."""
    worker = "import time\nwhile time.process_time() < 0.5: pass\nprint('ready', flush=True)\ninput()"
    parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {worker!r}])\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        tree = ProcessTree(child.pid)
        assert child.stdout.readline() == "ready\n"
        before = tree.fresh_seconds()
        child.kill()
        child.wait()
        assert before >= 0.3  # /proc counts whole ticks of user and of system time, and rounds each down
        assert tree.fresh_seconds() >= before
        child.stdin.close()


def test_workers_compile_every_test_module_once() -> None:
    shares = [compiling.share(f"gw{number}", 3) for number in range(3)]
    assert sorted(module for each in shares for module in each) == sorted(compiling.share("gw0", 1))
    assert __name__ in compiling.share("gw0", 1)


def test_progress_shows_count_percentage_and_what_is_left() -> None:
    progress = Progress([f"tests/none/test_none.py::test_{number}" for number in range(4)], started=0.0)
    assert progress.line(0.0) == "0 of 4 tests, 0 %, 0:00"
    progress.end("tests/none/test_none.py::test_0")
    assert progress.line(30.0) == "1 of 4 tests, 25 %, 0:30, about 1:30 left"
    progress.begin("tests/none/test_none.py::test_1", 10.0)
    assert progress.running(75.0) == "tests/none/test_none.py::test_1 (1:05)"
    progress.end("tests/none/test_none.py::test_1")
    assert progress.running(75.0) == ""
    progress.begin("tests/none/test_none.py::test_1", 10.0)
    progress.failed = 1
    assert progress.line(30.0).endswith("left, 1 failed")


def test_a_long_output_keeps_its_end() -> None:
    assert last_lines("a\nb") == "a\nb"
    kept = last_lines("\n".join(map(str, range(1000)))).splitlines()
    assert kept[0] == f"[{1000 - LINES_KEPT} lines before these]"
    assert kept[-1] == "999"


def test_a_failure_shows_frames_of_this_repository_and_the_one_that_raised(tmp_path: Path) -> None:
    test = """
        import json
        from tests.house import failures
        from pathlib import Path
        failures.ROOT = Path(__file__).parent

        def test_fails():
            json.loads("{")
    """
    done = run_pytest(tmp_path, test, "-p", "tests.house.failures")
    assert "test_it.py:8" in done.stdout, done.stdout
    assert "JSONDecodeError" in done.stdout
    assert "in decode" not in done.stdout
