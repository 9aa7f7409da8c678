"""`headrace` on a machine with a wrong clock: `python -m tests.drills.shifted_clock SECONDS agent ...`.

Place: started by the drill `wrong_clock`. Only Python's wall clock is shifted, for the whole process; monotonic time is
not, as NTP's steps do not move it either.
"""

from __future__ import annotations

import sys
import time


def main() -> int:
    """The command after the shift."""
    shift = float(sys.argv.pop(1))
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + shift
    time.time_ns = lambda: now_ns() + int(shift * 1e9)
    from headrace.cli.main import main as command

    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
