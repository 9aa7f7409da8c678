"""A second listener of the attacked agent, with TLS or SASL, and connections to it from two addresses of this machine.

Place: the attacks on listeners use it; Linux answers on all of 127.0.0.0/8.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from pathlib import Path

from headrace.config.free_ports import free_ports
from load.self_signed import write_certificate
from tests.hostile.frames import request

ATTACKER, ORDINARY = "127.0.0.66", "127.0.0.1"
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36


class SecondListener:
    """The agent's settings for it, and clients. One for each attack: its port and key are made at once."""

    def __init__(self, protocol: str) -> None:
        """`protocol`: as in listener.security.protocol.map."""
        directory = Path(tempfile.mkdtemp(prefix="headrace-attack-key-"))
        directory.chmod(0o755)
        certificate, key = write_certificate(directory)
        both = directory / "both.pem"
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        (self.port,) = free_ports(1)
        self.trust = ssl.create_default_context(cafile=str(certificate)) if protocol.endswith("SSL") else None
        self.settings: dict[str, object] = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:{self.port}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,SECOND:{protocol}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": str(both),
        }

    async def connect(self, address: str = ORDINARY) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """After its handshake."""
        return await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0), ssl=self.trust, server_hostname=self.trust and ORDINARY
        )

    async def silent(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of the attacker before any handshake."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ATTACKER, 0))

    async def ask_anew(self, seconds: float = 10.0) -> float | None:
        """Return how long an ordinary client takes to connect and to get an answer; None: it does not."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await self.connect()
                await exchange(reader, writer, request(API_VERSIONS, 0, b""))
                writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return None
        return time.monotonic() - began


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> bytes:
    """The reply."""
    writer.write(frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def waits(seconds: list[float | None]) -> str:
    """Return how other clients fared, for a line of the report."""
    served = [each for each in seconds if each is not None]
    return f"others: {len(served)} of {len(seconds)} served, the slowest in {max(served, default=0) * 1000:.0f} ms"
