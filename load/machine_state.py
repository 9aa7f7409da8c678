"""In which state the machine was: printed beside figures, so that they can be judged.

Invariant: it only reads.
"""

from __future__ import annotations

import os
import platform


def machine_state() -> str:
    """Cores, load average over 1, 5 and 15 minutes (other work counted), Python."""
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"machine: {os.cpu_count()} cores, load average {loads}, Python {platform.python_version()}"
