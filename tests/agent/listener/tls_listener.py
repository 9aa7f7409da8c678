"""A process with one TLS listener: `python -m tests.agent.listener.tls_listener PEM`.

Prints its port; for each line of input, resident bytes and what the listener counts for its connections.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.listener.server import KafkaListener
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.storage.clock import SystemClock
from tests.agent.listener.listener_client import echo, limits


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def main(pem: str) -> None:
    settings = load(flags={"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": pem})
    (endpoint,) = listeners(settings).serving
    clock = SystemClock()
    listener = KafkaListener(echo, limits(connections=10_000), clock, CollectorRegistry())
    print(await listener.start("127.0.0.1", 0, security=ListenerSecurity(settings, endpoint, clock)), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(_resident_bytes(), int(listener.memory_in_use()["connections"]()), flush=True)
    await listener.drain(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
