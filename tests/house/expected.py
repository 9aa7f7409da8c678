"""What each test file is expected to cost, for the order of the tests and for the time that is left.

Place: under units.py and progress.py. `python -m tests.house.expected` writes cost.json from the last run of `make
test`. Nothing fails if the table is old: a file that it does not know counts SECONDS_OF_UNKNOWN for each test.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tests.house.last_run import RESULTS

TABLE = Path(__file__).with_name("cost.json")
LAST = RESULTS.with_name("cost.json")
"""What the last run cost (cost.py)."""
SECONDS_OF_UNKNOWN = 0.1


def file_of(test: str) -> str:
    """Return the path of a test's file by the test's node id."""
    return test.split("::", 1)[0]


def seconds_of_test(test: str) -> float:
    """Return the seconds that a test is expected to take: the mean of its file."""
    return _table().get(file_of(test), SECONDS_OF_UNKNOWN)


@cache
def _table() -> dict[str, float]:
    found: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return found


def main() -> None:
    """Write the mean seconds of the tests of each file, as the last run measured them."""
    files: dict[str, list[float]] = {}
    for test, cost in json.loads(LAST.read_text(encoding="utf-8")).items():
        files.setdefault(file_of(test), []).append(cost["seconds"])
    table = {file: round(sum(seconds) / len(seconds), 3) for file, seconds in sorted(files.items())}
    TABLE.write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
