"""Each defence against Postgres going wrong has a test that fails when only that defence is taken out again.

FIXES is the list: what is taken out, by its text, and the test that must fail then. Each runs in a copy of the tree.
The names begin with the number of the row in docs/results/2026-11-22-postgres-rows.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("agent", "cli", "compactor", "config", "load", "metastore", "migrations", "protocol", "src", "storage", "tests")


class Fix(NamedTuple):
    """`right` in `file` is the defence, `wrong` the code without it; `test` is a pytest id."""

    file: str
    right: str
    wrong: str
    test: str


POOL, PRODUCERS = "tests/metastore/test_pool.py", "metastore/postgres/commit/fold_producers.sql"
COST, WIDE = "tests/metastore/test_commit_cost.py", "tests/metastore/test_wide_look_ups.py"
FIXES = {
    "1 connections go to servers that accept writes": Fix(
        "metastore/postgres/pool.py",
        '{"target_session_attrs": "read-write"}',
        '{"target_session_attrs": "any"}',
        f"{POOL}::test_a_server_that_only_reads_is_refused",
    ),
    "1 a connection that turned read-only is closed": Fix(
        "metastore/postgres/statement.py",
        "                await connection.close()\n                await pool.drain()\n                raise\n",
        "                raise\n",
        f"{POOL}::test_a_connection_that_turned_read_only_is_replaced",
    ),
    "2 a commit finds the newest version of a row first": Fix(
        "metastore/postgres/commit/commit_files.sql",
        "FROM partition_heads WHERE partition_key = key\n                          ORDER BY update_block DESC LIMIT 1",
        "FROM partition_heads WHERE partition_key = key\n                          ORDER BY update_block LIMIT 1",
        f"{COST}::test_a_held_snapshot_costs_a_commit_a_few_pages",
    ),
    "3 one budget for a look-up over all its partitions": Fix(
        "metastore/postgres/read/look_up_extents.sql",
        "AND w.step < 500 AND w.found < p_extents AND w.bytes < p_total_bytes",
        "AND w.step < 500",
        f"{WIDE}::test_a_look_up_of_thousands_of_lagging_partitions_reads_a_bounded_number_of_extents",
    ),
    "3 readers have their own connections": Fix(
        "metastore/postgres/store.py",
        "return cls(pool, await open_readers_pool(url, settings), settings, *cluster)",
        "return cls(pool, pool, settings, *cluster)",
        f"{WIDE}::test_no_number_of_blocked_look_ups_delays_a_commit_a_heartbeat_or_the_feed",
    ),
    "4 responses share a limited memory": Fix(
        "agent/listener/reply_memory.py",
        "return self.in_use_bytes + size <= self._total or self.in_use_bytes <= 0",
        "return True",
        "tests/agent/listener/test_shares.py::test_unread_replies_count_until_they_are_read",
    ),
    "5 objects that are refused are set aside": Fix(
        "compactor/janitor.py",
        "            await self._api.set_aside_files(lease.token, refused)\n",
        "",
        "tests/compactor/test_janitor.py::test_what_the_store_refuses_keeps_its_row_and_holds_up_nothing",
    ),
    "6 a step of housekeeping that breaks does not end the others": Fix(
        "agent/serve/housekeeping.py",
        "        except Exception:  # a bug, or a client library's: it must not end the other steps\n",
        "        except HeadraceError:\n",
        "tests/agent/serve/test_housekeeping.py::test_a_step_that_breaks_does_not_starve_the_others",
    ),
    "7 a block of producer ids costs an index probe": Fix(
        "metastore/postgres/commit/allocate_producer_ids.sql",
        "(SELECT last_id + 1 FROM producer_id_blocks ORDER BY first_id DESC LIMIT 1)",
        "(SELECT max(last_id) + 1 FROM producer_id_blocks)",
        f"{COST}::test_a_block_of_producer_ids_costs_the_same_for_any_number_of_leased_ones",
    ),
    "8 a young partition has forgotten no producer": Fix(
        PRODUCERS,
        "SELECT to_ms(created_at) < v_before FROM partitions WHERE partition_key = p_key",
        "SELECT true",
        "tests/metastore/test_commit.py",
    ),
    "8 a young producer was forgotten by no partition": Fix(
        PRODUCERS,
        "SELECT last_id >= p_producer_id AND to_ms(leased_at) + producer_id_block_ms() < v_before",
        "SELECT last_id >= p_producer_id",
        "tests/metastore/test_commit.py",
    ),
    "9 a stored retry that was overtaken is a duplicate": Fix(
        PRODUCERS,
        "ELSIF v_same AND v_whole AND is_behind(b.sequence, b.records, v_next, v_wrap) THEN",
        "ELSIF false THEN",
        "tests/metastore/test_commit.py",
    ),
    "9 but only if everything below it is stored": Fix(
        PRODUCERS,
        "ELSIF v_same AND v_whole AND is_behind(b.sequence, b.records, v_next, v_wrap) THEN",
        "ELSIF v_same AND is_behind(b.sequence, b.records, v_next, v_wrap) THEN",
        "tests/metastore/test_commit.py",
    ),
    "10 a process waits for Postgres at its start": Fix(
        "cli/process/waiting.py",
        "if clock.monotonic() + RETRY_SECONDS >= give_up_at:",
        "if True:",
        "tests/cli/test_cli_waiting.py::test_connecting_is_tried_until_the_registration_timeout",
    ),
    "11 a fetch that does not wait shows what was acknowledged": Fix(
        "agent/fetch/handler.py",
        "            await self._catch_up()\n"
        "            return await self._locate(queries, max_bytes, committed=committed)\n",
        "            return lookups\n",
        "tests/agent/fetch/test_poll.py::test_a_fetch_that_does_not_wait_shows_what_was_acknowledged_before_it",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXES)
def test_a_test_fails_without_the_fix(name: str, tmp_path: Path) -> None:
    fails_without(FIXES[name], name, tmp_path)


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_is_there(name: str) -> None:
    is_there(FIXES[name])


def fails_without(fix: Fix, name: str, tmp_path: Path) -> None:
    """Run the fix's test in a copy of the tree that lacks the fix."""
    for folder in CODE:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "Makefile", "docs"):
        (tmp_path / file).symlink_to(ROOT / file)
    changed = tmp_path / fix.file
    changed.write_text(changed.read_text().replace(fix.right, fix.wrong))
    done = _pytest(tmp_path, fix.test)
    assert done.returncode == 1, f"{name}: the test does not need the fix, or cannot run\n{done.stdout[-3000:]}"
    print(next((line for line in done.stdout.splitlines() if line.startswith("FAILED")), "FAILED"))


def is_there(fix: Fix) -> None:
    """The fix is in its file once, and its test exists."""
    assert (ROOT / fix.file).read_text().count(fix.right) == 1
    assert (ROOT / fix.test.partition("::")[0]).is_file()


def _pytest(tree: Path, test: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", test]
    path = os.pathsep.join((str(tree / "src"), str(tree)))
    return subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
