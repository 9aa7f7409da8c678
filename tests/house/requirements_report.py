"""`make requirements`: one line per numbered promise, its tests, passed or open, as the last `make test` left them.

Reads .test-results/last.json (tests/house/last_run.py) and runs nothing. A row is passed when each of its parts
has at least one test and all of its tests passed; a skipped test leaves its row open. Results of another commit,
of a tree with changes, or of a part of the tests are refused.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import defaultdict
from typing import Any

from tests.house.last_run import RESULTS, ROOT, tree_state

ROWS = ROOT / "docs" / "requirements.toml"


def load_rows() -> dict[str, tuple[str, list[str]]]:
    """Number -> (title, the marks that it needs)."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for section in tomllib.loads(ROWS.read_text(encoding="utf-8")).values():
        for number, row in section.items():
            if isinstance(row, str):
                rows[number] = (row, [number])
            else:
                rows[number] = (row["title"], [f"{number}.{part}" for part in range(1, row["parts"] + 1)])
    return rows


def why_refused(result: dict[str, Any], state: dict[str, Any]) -> str | None:
    """Return why these results say nothing about the tree as it is; None if they do."""
    if result["commit"] != state["commit"]:
        return f"the last test run was of another commit: tested={result['commit'][:12]} now={state['commit'][:12]}"
    if result["is_dirty"] or state["is_dirty"]:
        return "the tree differs from its commit: commit or stash first, then run `make test`"
    if any("/" in argument for argument in result["arguments"]):
        return "the last test run was of a part of the tests: run `make test`"
    return None


def report(tests: dict[str, dict[str, Any]]) -> list[str]:
    """A line per promise, and a last line that counts them."""
    outcomes: dict[str, list[str]] = defaultdict(list)
    for test in tests.values():
        for number in test["numbers"]:
            outcomes[number].append(test["outcome"])
    lines, passed, rows = [], 0, load_rows()
    for number, (title, marks) in rows.items():
        done = all(outcomes[mark] and set(outcomes[mark]) == {"passed"} for mark in marks)
        passed += done
        count = sum(len(outcomes[mark]) for mark in marks)
        lines.append(f"{number:<4} {count:>3} tests  {'passed' if done else 'open  '}  {title}")
    return [*lines, f"{passed} of {len(rows)} passed"]


def main() -> int:
    """Print the table; 1 without results that fit."""
    try:
        result = json.loads(RESULTS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print("error: there is no test run to report: run `make test` first", file=sys.stderr)
        return 1
    if reason := why_refused(result, tree_state()):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    print("\n".join(report(result["tests"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
