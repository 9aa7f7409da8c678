"""Ports of 127.0.0.1 for servers that do not say which one they got.

Place: under kafka_target.py and s3_rig.py.
"""

from __future__ import annotations

import socket


def accepts(port: int) -> bool:
    """Say whether a server listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
