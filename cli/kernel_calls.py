"""What a child process asks of the kernel before it does anything else.

Place: called in the child, between fork and the first line of its work.
Source: prctl(2).
"""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def die_with_parent() -> None:
    """This process gets SIGTERM when its parent exits for any reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def name_process(name: str) -> None:
    """Set the name that `top` and `ps -o comm` show, up to 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
