"""The state of the machine: printed next to figures, so that readers can judge them.

Invariant: it only reads.
"""

from __future__ import annotations

import os
import platform


def machine_state() -> str:
    """Cores, load average over 1, 5 and 15 minutes (other work counted), Python."""
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"machine: {os.cpu_count()} cores, load average {loads}, Python {platform.python_version()}"
