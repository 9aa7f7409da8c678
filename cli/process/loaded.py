"""All that an agent imports, loaded in one go.

Place: before anything of an agent runs: in its own process, or in the fork server of cli/children.py.
Invariant: no thread and no connection is opened here. What is loaded is never collected, so that forked processes
share its memory.
"""

from __future__ import annotations

import gc
import sys

_HIDDEN = "hypothesis"
_is_hidden = sys.modules.setdefault(_HIDDEN, None) is None  # type: ignore[arg-type]
"""Hide a package: where the tests' packages are installed, kio would load it and describe its types to it: a seventh of
the time.
"""
gc.disable()  # passes over the classes of a thousand modules find nothing, and take a sixth of the time

from headrace.cli.process.serve import OneOfSeveral, serve  # noqa: E402 -- after gc.disable

gc.freeze()
gc.enable()
if _is_hidden:
    del sys.modules[_HIDDEN]

__all__ = ["OneOfSeveral", "serve"]
