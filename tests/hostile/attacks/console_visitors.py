"""The console before sign-in: 70 bodies that never end, tokens of any characters, what its pages say, who leaves."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.http_requests import get, probes
from tests.hostile.second_listener import waits

BODIES, PROBES = 70, 10


async def attack(target: AttackedAgent) -> str:
    """Against a console of the attacked cluster, in a separate process."""
    tokens, log = target.directory / "tokens", target.directory / "console.log"
    tokens.write_text("the-token\n")
    checkout = target.checkout
    own = [str(checkout / ".venv/bin/headrace")] if checkout else [sys.executable, "-m", "headrace.cli.main"]
    command = [*own, "console", "-b", target.bootstrap, "--listen", "127.0.0.1:0"]
    environment = dict(os.environ) | ({"PYTHONPATH": f"{checkout}/src:{checkout}"} if checkout else {})
    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, "--http-bearer-token-location", str(tokens),
            stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment, cwd=checkout,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(rb":(\d+)/", await process.stdout.readline())
        assert found is not None
        told = await _visit(("127.0.0.1", int(found[1])), target)
    finally:
        process.terminate()
        await process.wait()
    return f"{told}, {log.read_text().count('Traceback')} tracebacks"


async def _visit(console: tuple[str, int], target: AttackedAgent) -> str:
    bodies = [await asyncio.open_connection(*console) for _ in range(BODIES)]
    for _, writer in bodies:
        writer.write(b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nt")
    told = waits(await probes(console, PROBES))
    for _, writer in bodies:
        writer.transport.abort()
    await asyncio.sleep(0.5)
    page = await get(console, "/sign-in")
    names = "names" if target.bootstrap.encode() in page or re.search(rb"Headrace \d", page) else "does not name"
    token = await _post(console, "token=%C3%A9")
    return f"{told}; a token that is not ASCII gets {token}, the sign-in page {names} servers or version"


async def _post(console: tuple[str, int], body: str) -> str:
    reader, writer = await asyncio.open_connection(*console)
    head = f"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    status = (await reader.readline()).split()
    writer.close()
    return status[1].decode() if len(status) > 1 else "nothing"
