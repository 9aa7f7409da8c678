"""Finds out whether a server has begun to listen on 127.0.0.1.

Place: under s3_rig.py, and the torture that kills Kafka's servers. Ports come from config/free_ports.py.
"""

from __future__ import annotations

import socket


def accepts(port: int) -> bool:
    """Return whether a server listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
