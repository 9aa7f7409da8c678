"""`python -m load.tools [deploy]`: install what tests need and this machine can give, one line per tool.

With `deploy`, the programs that check deploy/: they take minutes to build.

A tool that cannot be installed is named with the reason; tests that need it are skipped by name. The exit
status is 0 all the same, because the tests decide what their absence means.
"""

from __future__ import annotations

import sys
import time

from load.tools import ALL, Tool
from load.tools.deploy import DEPLOY_TOOLS
from load.tools.installing import TOOLS, InstallError


def _prepare(tool: Tool) -> str:
    if tool.is_present:
        return "present"
    if tool.missing_programs:
        return f"left out: {', '.join(tool.missing_programs)} not on PATH ({tool.enable})"
    if tool.install is None:
        return f"left out: install it with {tool.enable}"
    print(f"  {tool.name:14} installing ...", flush=True)
    started = time.monotonic()
    try:
        tool.install()
    except (InstallError, OSError, TimeoutError) as error:
        return f"left out: {error}"
    return f"installed in {time.monotonic() - started:.0f} s"


def main() -> None:
    """Every tool of one of the two lists, in turn."""
    tools = DEPLOY_TOOLS if sys.argv[1:] == ["deploy"] else ALL
    print(f"tools for the tests, below {TOOLS}", flush=True)
    for tool in tools.values():
        print(f"  {tool.name:14} {tool.what:28} {_prepare(tool)}", flush=True)


if __name__ == "__main__":
    main()
