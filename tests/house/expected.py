"""What tests are expected to take, for the order of the tests and for the time that is left.

Place: under units.py and progress.py. `python -m tests.house.expected` writes cost.json from the last run: the mean of
a file for the tests of `make test`, the mean of a test function for slow ones. Where a run had no slow tests, theirs
stay as they were. Nothing fails if the table is old: a file that it does not know counts SECONDS_OF_UNKNOWN for each
test.
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


def family_of(test: str) -> str:
    """Return the test function, as slow tests are counted: a search for a planted bug is another one."""
    function, _, case = test.partition("[")
    return f"{function} searched" if case.endswith("-searched]") else function


def seconds_of_test(test: str) -> float:
    """Return the seconds that a test is expected to take."""
    found = _table().get(family_of(test))
    return _table().get(file_of(test), SECONDS_OF_UNKNOWN) if found is None else found


@cache
def _table() -> dict[str, float]:
    found: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return found


def main() -> None:
    """Write the means that the last run measured."""
    measured: dict[str, list[float]] = {}
    for test, cost in json.loads(LAST.read_text(encoding="utf-8")).items():
        measured.setdefault(family_of(test) if cost.get("is_slow") else file_of(test), []).append(cost["seconds"])
    table = {name: seconds for name, seconds in _table().items() if "::" in name}
    table |= {name: round(sum(seconds) / len(seconds), 3) for name, seconds in measured.items()}
    TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
