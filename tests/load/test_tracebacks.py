"""Each traceback in an agent's log fails a run under faults, also asyncio's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.tracebacks import find_tracebacks

QUIET = "2026-11-26 15:00:01 WARNING headrace.agent.fetch.index.feed: feed poll failed: error=down\n"
TRACEBACK = """Traceback (most recent call last):
  File "feed.py", line 1, in _follow
    behind = await self._poll()
IndexError: list index out of range
"""
CHAINED = TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
UNHEARD = "2026-11-26 15:00:01 ERROR asyncio: Task exception was never retrieved\nfuture: <Task finished>\n"
GROUP = (
    '  + Exception Group Traceback (most recent call last):\n  |   File "feed.py", line 3, in run\n'
    "  | ExceptionGroup: of a group\n  +-+---------------- 1 ----------------\n"
    + "".join(f"    | {line}\n" for line in TRACEBACK.splitlines())
    + "    +------------------------------------\n"
)
WITHOUT_END = "traceback in agent-0.log: a traceback without an end, last line:"
INDEX_ERROR = "traceback in agent-0.log: IndexError: list index out of range"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (QUIET * 3, []),
        (QUIET + TRACEBACK + QUIET, [f"{INDEX_ERROR} (1 times)"]),
        (TRACEBACK + QUIET + TRACEBACK, [f"{INDEX_ERROR} (2 times)"]),
        (QUIET + TRACEBACK.replace("\n", "\n  ") + "\n" + QUIET, [f"{INDEX_ERROR} (1 times)"]),
        (CHAINED, [f"{INDEX_ERROR} (2 times)"]),
        (UNHEARD + TRACEBACK, [f"{INDEX_ERROR} (1 times)"]),
        (UNHEARD + QUIET, [f"traceback in agent-0.log: {UNHEARD.splitlines()[0]} (1 times)"]),
        (QUIET + TRACEBACK[:60], [f'{WITHOUT_END}   File "feed.py", line 1, (1 times)']),
        (GROUP, ["traceback in agent-0.log: ExceptionGroup: of a group (1 times)", f"{INDEX_ERROR} (1 times)"]),
    ],
)
def test_each_traceback_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    log = tmp_path / "agent-0.log"
    log.write_text(text)
    assert find_tracebacks([log]) == found
