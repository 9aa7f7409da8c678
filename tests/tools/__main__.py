"""`python -m tests.tools [deploy | PLAN]`: install what tests need and this machine can give, one line per tool.

Without an argument every tool of ALL, with `deploy` the programs that check deploy/, which take minutes to build. A
folder is the plan of a test run: what it promises and does not have yet is installed during the run's first tests.

A tool that cannot be installed is named with the reason; tests that need it are skipped by name. The exit
status is 0 all the same, because the tests decide what their absence means.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.tools import ALL, every_tool
from tests.tools.deploy import DEPLOY_TOOLS
from tests.tools.installing import TOOLS, InstallError
from tests.tools.plan import ToolPlan
from tests.tools.tool import Tool

_LOWEST_PRIORITY = 19


def install_all(tools: Iterable[Tool]) -> None:
    """Install each tool in turn."""
    print(f"tools for the tests, below {TOOLS}", flush=True)
    for tool in tools:
        if tool.is_present:
            said = "present"
        elif why_not := why_not_installable(tool):
            said = f"left out: {why_not}"
        else:
            said = _install(tool)[1]
        print(f"  {tool.name:16} {tool.what:46} {said}", flush=True)


def why_not_installable(tool: Tool) -> str | None:
    """Return what this machine lacks, with the command that helps; None if the tool can be installed."""
    if tool.missing_programs:
        return f"{', '.join(tool.missing_programs)} not on PATH ({tool.enable})"
    return None if tool.install else f"enable: {tool.enable}"


def carry_out(plan: ToolPlan) -> None:
    """Install what the plan promises, and settle each tool. Builds of minutes come last, and give way to the tests."""
    for name, tool in every_tool().items():
        if plan.is_waiting(name):
            if name in DEPLOY_TOOLS:
                os.nice(_LOWEST_PRIORITY - os.nice(0))
            failure, said = _install(tool)
            plan.settle(name, failure)
            print(f"tools: {name} {said}", flush=True)


def _install(tool: Tool) -> tuple[str, str]:
    """Return the failure, or an empty text, and what to tell."""
    assert tool.install is not None
    started = time.monotonic()
    try:
        tool.install()
    except (InstallError, OSError, subprocess.TimeoutExpired) as error:
        return str(error), f"left out: {error}"
    return "", f"installed in {time.monotonic() - started:.0f} s"


def main() -> None:
    """Install the tools that the argument names."""
    match sys.argv[1:]:
        case []:
            install_all(ALL.values())
        case ["deploy"]:
            install_all(DEPLOY_TOOLS.values())
        case [folder]:
            carry_out(ToolPlan(Path(folder)))


if __name__ == "__main__":
    main()
