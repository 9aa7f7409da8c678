"""A change of a usual kind touches few files: one example of each is followed through the product.

Place: CONTRIBUTING.md's table "What a change touches" says which. Generated pages and tests are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "agent", "cli", "client", "compactor", "config", "jobs", "metastore", "protocol", "scan", "spark", "storage",
    "tables",
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        pytest.param(r"\bCLEAN_UP_SEGMENTS\b", {"jobs/kinds.py", "compactor/worker.py"}, id="a job"),
        pytest.param(r"\bcompaction[._]interval[._]ms\b", {"config/settings.py", "jobs/kinds.py"}, id="a setting"),
        pytest.param(
            r"\bmessage[._]timestamp[._]after[._]max[._]ms\b",
            {"config/topic_configs.py", "agent/produce/validate.py", "scan/bulk/commit.py"},
            id="a topic config",
        ),
        pytest.param(r"\bheadrace_segment_cleanup_total\b", {"compactor/segments.py"}, id="a metric"),
        pytest.param(
            r'"json-schema"|\bJSON_SCHEMA\b',
            {"config/table_configs.py", "tables/values/formats.py"},
            id="a table format",
        ),
    ],
)
def test_an_example_is_named_where_contributing_says(pattern: str, files: set[str]) -> None:
    named = re.compile(pattern)
    assert files == {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
