"""Planted bugs and the seeds that show them: each test of a planted bug that has to be looked for takes its seeds here.

`@BUGS.cases(names)` makes two cases of a test for each bug:
- the everyday case runs the one seed that tests/data/planted_seeds.toml records, and fails if it does not show the bug;
- the slow case `...-searched` draws fresh seeds until one shows it, and reports how many it tried.
A seed is one schedule, history or generated example. After a change that moves what seeds mean, the search records
new ones: `python -m tests.planted [suite or suite/bug ...]`. The cheapest of some seeds that show the bug is kept.
Invariant: a case passes only if a seed showed its bug, and something that the bug replaces was called until then;
without the bug, other tests show that no seed finds anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.patch import Patch

RECORDED = Path(__file__).parent / "data" / "planted_seeds.toml"
HEADING = (
    "# The seeds that show the planted bugs, by suite. Record them with `python -m tests.planted` (tests/planted.py).\n"
)
TRIED = "seeds that a search tried"
"""The property with which the slow cases report: [suite/bug, how many]."""
SEARCHED = "searched"
SEEDS = 1_000_000
"""Fresh seeds are below this."""
CANDIDATES, SECONDS, REPEATS, RACES = 6, 5.0, 2, 5
"""What is recorded is the cheapest of so many seeds, or of those found within so long, and shows the bug each
of so many times more. The last number is for races, in which the operating system decides a little: a recorded one may
need as many attempts."""
DRAW, RECORD = "HEADRACE_PLANTED_DRAW", "HEADRACE_PLANTED_RECORD"
"""A failed search is repeated with the first; the second makes the search record what it finds."""

Report = Callable[[str, object], None]
"""Pytest's record_property."""


class Trial:
    """The seeds of one case. The test plants the bug, runs each seed that it is given, and tells `saw` what it showed.

    Place: a fixture of tests/conftest.py begins and ends it. `patch` replaces attributes until then.
    """

    report: Report
    patch: Patch

    def __init__(self, suite: PlantedBugs, bug: str) -> None:
        self._suite, self._bug = suite, bug
        self.suite, self.name = suite.name, f"{suite.name}/{bug}"
        self._seen: object = None
        self._shown = False

    @contextlib.contextmanager
    def begun(self, report: Report) -> Iterator[Trial]:
        """Run a test with it."""
        self.report = report
        with self.planted(lambda patch: None):
            yield self

    def plant(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute until the test ends; a seed that shows the bug must have called it."""
        self.patch.replace(owner, name, replacement)

    @contextlib.contextmanager
    def planted(self, plant: Callable[[Patch], object]) -> Iterator[None]:
        """Plant a bug for a block: for tests in which a part of each seed runs without it."""
        with contextlib.ExitStack() as stack:
            self.patch = Patch(stack)
            plant(self.patch)
            yield

    def saw(self, shown: object, instead: object = None) -> None:
        """Tell whether the seed showed the bug; `instead`: what else it showed."""
        self._shown = bool(shown)
        self._seen = self._seen or instead

    @contextlib.contextmanager
    def shown_by(self, *errors: type[BaseException], told: str = "") -> Iterator[None]:
        """Take one of these errors for the bug, if its text matches `told`."""
        try:
            yield
        except errors as found:
            self.saw(re.search(told, str(found)), instead=f"{type(found).__name__}: {found}")

    def _has_shown(self) -> bool:
        if self._shown and (unused := self.patch.never_called()):
            pytest.fail(f"{self.name} is shown, but what it replaces was never called: {sorted(unused)}")
        return self._shown

    def seeds(self) -> Iterator[int]:
        """Give the recorded seed; the test fails if it does not show the bug."""
        seed = recorded().get(self._suite.name, {}).get(self._bug)
        again = f"record it again with `.venv/bin/python -m tests.planted {shlex.quote(self.name)}`"
        if seed is None:
            pytest.fail(f"no seed is recorded for {self.name}: {again}")
        for _ in range(RACES if self._suite.is_race else 1):
            yield self._suite.first + seed
            if self._has_shown():
                break
        else:
            seen = f" (seen instead: {self._seen})" if self._seen else ""
            pytest.fail(f"seed {seed} of {self.name} no longer shows it{seen}: {again}")


class Search(Trial):
    """The slow case: fresh seeds."""

    def seeds(self) -> Iterator[int]:
        """Give seeds until one shows the bug; the test fails after `most` of them."""
        draw = os.environ.get(DRAW) or str(random.SystemRandom().randrange(SEEDS))
        rng = random.Random(f"{draw} {self._suite.name} {self._bug}")
        print(f"{self.name}: seeds are drawn with {DRAW}={draw}")
        found: list[tuple[float, int]] = []
        wanted = CANDIDATES if RECORD in os.environ else 1
        began_search = time.monotonic()
        for attempt in range(1, self._suite.most + 1):
            seed, began = rng.randrange(SEEDS), time.process_time()
            self._shown = False
            yield self._suite.first + seed
            if not self._has_shown():
                continue
            if not found:
                print(f"{self.name}: found by seed={seed} attempts={attempt}")
                self.report(TRIED, [self.name, attempt])
            found.append((time.process_time() - began, seed))
            if len(found) == wanted or time.monotonic() - began_search > SECONDS:
                break
        if not found:
            seen = f" (seen instead: {self._seen})" if self._seen else ""
            pytest.fail(f"{self.name}: not found by {self._suite.most} seeds{seen} {DRAW}={draw}")
        if RECORD in os.environ:
            yield from self._record(sorted(found))

    def _record(self, found: Sequence[tuple[float, int]]) -> Iterator[int]:
        for seconds, seed in found:
            for _ in range(RACES if self._suite.is_race else REPEATS):
                self._shown = False
                yield self._suite.first + seed
                if not self._shown:
                    break
            else:
                print(f"{self.name}: recorded seed={seed} cpu_seconds={seconds:.2f}")
                write(self._suite.name, self._bug, seed)
                return
        pytest.fail(f"{self.name}: no seed shows it each time: {[seed for _, seed in found]}")


class PlantedBugs:
    """The planted bugs of one test. `first` is added to each seed; a search gives up after `most` seeds.

    `is_race`: several sessions of Postgres are under way; if a commit releases two locks, either may be first.
    """

    def __init__(self, name: str, *, first: int = 0, most: int = 3_000, is_race: bool = False) -> None:
        self.name, self.first, self.most, self.is_race = name, first, most, is_race

    def cases(self, bugs: Iterable[Any], name_of: Callable[[Any], str] = str) -> pytest.MarkDecorator:
        """Parametrize a test by `bug` and `trial`."""
        return parametrized(self.params(bugs, name_of))

    def params(self, bugs: Iterable[Any], name_of: Callable[[Any], str] = str) -> list[Any]:
        """Return both cases of each bug, for a test that has the bugs of several suites."""
        params = []
        for bug in bugs:
            name = name_of(bug)
            params.append(pytest.param(bug, Trial(self, name), id=name))
            params.append(pytest.param(bug, Search(self, name), id=f"{name}-{SEARCHED}", marks=pytest.mark.slow))
        return params


def parametrized(params: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the `bug` and `trial` of these cases."""
    return pytest.mark.parametrize(("bug", "trial"), list(params), indirect=["trial"])


def recorded() -> dict[str, dict[str, int]]:
    """Suite -> bug -> seed."""
    return tomllib.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


def write(suite: str, bug: str, seed: int) -> None:
    """Record a seed. One process writes."""
    seeds = recorded()
    seeds.setdefault(suite, {})[bug] = seed
    lines = [HEADING]
    for name, bugs in sorted(seeds.items()):
        lines += [f"\n[{json.dumps(name)}]\n", *(f"{json.dumps(bug)} = {at}\n" for bug, at in sorted(bugs.items()))]
    RECORDED.write_text("".join(lines), encoding="utf-8")


class _Chosen:
    """A plugin of pytest: only the searches for the named suites or bugs; for all, if none is named."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._is_chosen(getattr(item, "callspec", None))]

    def _is_chosen(self, case: Any) -> bool:
        trial = case.params.get("trial") if case is not None else None
        return isinstance(trial, Search) and (
            not self._names or trial.suite in self._names or trial.name in self._names
        )


def main(names: Sequence[str]) -> int:
    """Search for the bugs of suites, or for one as `suite/bug`, and record a seed for each."""
    os.environ[RECORD] = "1"
    return int(pytest.main(["-n", "0", "-rA", "--timeout", "0"], plugins=[_Chosen(names)]))


if __name__ == "__main__":
    from tests import planted  # the module that tests import: this one is called __main__

    sys.exit(planted.main(sys.argv[1:]))
