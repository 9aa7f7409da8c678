"""What a reversal is: a defence that is taken out of the product by a seam, and the test that must fail then.

Place: listed by tests/house/reverted_fixes.py and reverted_bounds.py, and run by test_reverted_fixes.py and
test_reverted_bounds.py.
Invariant: no source changes. Every Python process of the test installs the reversal at its start, also the agents that
it starts. A SQL function is replaced after `migrate` installed the right one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.metastore.postgres import migrate
from headrace.metastore.postgres.sql_files import SqlFile, function_files, signatures
from tests.patch import Patch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Reversal:
    """`apply` takes the defence out; `test` is the pytest id of what must fail then."""

    apply: Callable[[Patch], None]
    test: str

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Leave the defence out as long as the block runs. AttributeError if its seam is gone."""
        with contextlib.ExitStack() as stack:
            self.apply(Patch(stack))
            yield

    def fails(self, module: str, name: str, folder: Path) -> None:
        """Run the test without the defence. `module` has the table REVERSALS with this reversal as `name`."""
        start = f"from {module} import REVERSALS\nleft_out = REVERSALS[{name!r}].installed()\nleft_out.__enter__()\n"
        (folder / "sitecustomize.py").write_text(start)
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider"]
        command += ["-W", "ignore:Module already imported"]  # by the start: assertions of plugins are not rewritten
        path = os.pathsep.join((str(folder), str(ROOT / "src"), str(ROOT)))
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [*command, self.test], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert "Error in sitecustomize" not in done.stderr, done.stderr
        failed = re.search(r"^.*::.*\n!.*\n1 failed\b", done.stdout, re.MULTILINE)
        shown = (done.stdout + done.stderr)[-3000:]
        assert failed, f"{name}: the test does not need the defence, or cannot run\n{shown}"
        print(failed[0].split("\n")[0].strip())

    def has_seam(self) -> None:
        """Check that the defence can be taken out, and that the test's file is there."""
        with self.installed():
            pass
        assert (ROOT / self.test.partition("::")[0]).is_file()


def with_attribute(owner: Any, name: str, replacement: Any) -> Callable[[Patch], None]:
    """A reversal that replaces one attribute."""

    def apply(patch: Patch) -> None:
        patch.replace(owner, name, replacement)

    return apply


def with_sql(function: str, text: str) -> Callable[[Patch], None]:
    """A reversal that runs a statement after the functions are installed; `function` is what it replaces or changes."""

    def apply(patch: Patch) -> None:
        assert function in signatures(), f"no such SQL function: {function}"
        right = function_files
        patch.replace(migrate, "function_files", lambda: (*right(), SqlFile("reversal", text)))

    return apply


def with_value(signature: str, value: str) -> Callable[[Patch], None]:
    """A reversal in which a SQL function returns another expression. `signature`: name(parameters) RETURNS type."""
    text = f"CREATE OR REPLACE FUNCTION {signature} LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {value}"
    return with_sql(signature.partition("(")[0], text)
