"""The tools of one test run: decided when the run begins, so that nothing that appears meanwhile changes its result.

Place: `make test` (tests/run.py) or pytest itself writes the plan before the first test; `python -m tests.tools`
carries it out during the first tests; a test that needs a tool waits for it (tests/house/needs.py).
Invariant: what the plan leaves out stays left out for the whole run, also if it is installed meanwhile. What it
promises is there, or its installation has failed, once `wait_for` returns.

A plan is a folder: `plan.json` maps each tool to the reason why it is left out or to null, `promised.json` lists those
that are installed during the run, and `settled/<name>` appears when a promised tool is there (an empty file) or could
not be installed (the reason).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "HEADRACE_TEST_PLAN"
"""Names the folder of the plan to the processes of a run."""
_POLL_SECONDS = 0.2
WAIT_SECONDS_MAX = 1_800
"""Longer than any installation takes; an installer that was killed settles nothing."""


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The decision of one run. `folder`: where it is stored."""

    folder: Path

    @classmethod
    def write(cls, folder: Path, left_out: dict[str, str | None], present: Iterable[str]) -> ToolPlan:
        """Decide: `left_out` has a reason or None for every tool, `present` names the tools that are there already."""
        plan = cls(folder)
        plan._settled.mkdir(parents=True)
        there = set(present)
        for name in there:
            plan.settle(name)
        promised = [name for name, reason in left_out.items() if reason is None and name not in there]
        (folder / "promised.json").write_text(json.dumps(promised), encoding="utf-8")
        (folder / "plan.json").write_text(json.dumps(left_out), encoding="utf-8")
        return plan

    @classmethod
    def current(cls) -> ToolPlan | None:
        """Return the plan of the run that this process belongs to; None outside a run."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder)) if folder else None

    @property
    def _settled(self) -> Path:
        return self.folder / "settled"

    def why_left_out(self, name: str) -> str | None:
        """Return the reason why the run does without this tool; None if it has it or will have it."""
        decided: dict[str, str | None] = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
        return decided[name]

    def promised(self) -> frozenset[str]:
        """Return the tools that were not there when the run began, and are installed during it."""
        return frozenset(json.loads((self.folder / "promised.json").read_text(encoding="utf-8")))

    def is_waiting(self, name: str) -> bool:
        """Say whether the tool is promised and neither installed nor given up."""
        return self.why_left_out(name) is None and not (self._settled / name).exists()

    def has(self, name: str) -> bool:
        """Say whether the tool is there, as the run sees it."""
        return self.why_left_out(name) is None and (self._settled / name).exists() and not self._failure(name)

    def settle(self, name: str, failure: str = "") -> None:
        """Say that a promised tool is there, or why it could not be installed."""
        half = self._settled / f".{name}"
        half.write_text(failure, encoding="utf-8")
        half.rename(self._settled / name)

    def wait_for(self, name: str) -> str | None:
        """Return None once the tool is there, or the reason why the run does without it."""
        if reason := self.why_left_out(name):
            return reason
        until = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < until:
            if (self._settled / name).exists():
                failure = self._failure(name)
                return f"needs {name} ({failure})" if failure else None
            time.sleep(_POLL_SECONDS)
        return f"needs {name} (its installation did not end)"

    def _failure(self, name: str) -> str:
        return (self._settled / name).read_text(encoding="utf-8")
