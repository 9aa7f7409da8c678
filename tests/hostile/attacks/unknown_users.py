"""Names of users are tried before a login: salt and iterations of SCRAM tell those that exist from those that do not.

Users are made as librdkafka and as Kafka's own tools make them. A classifier that sees only the first answer of the
agent guesses for each name whether it exists: what most names that cannot exist show is `unknown`.
"""

from __future__ import annotations

import asyncio
import base64
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.config.free_ports import free_ports
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import request, text

_HANDSHAKE, _AUTHENTICATE = 17, 36
_MECHANISM = "SCRAM-SHA-512"
_USERS = 20
_SECONDS_MAX = 60


def kafka_salt(rng: random.Random) -> bytes:
    """Make a salt as Kafka's tools do: a number of 130 bits to the base 36."""
    number, digits = rng.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def first_message(user: str) -> bytes:
    """SaslAuthenticate with the first message of SCRAM."""
    message = f"n,,n={user},r=nonce".encode()
    return request(_AUTHENTICATE, 1, struct.pack(">i", len(message)) + message)


async def shown(port: int, user: str) -> str:
    """Return what the agent shows of the name: the form of its salt, and the iterations."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(_HANDSHAKE, 1, text(_MECHANISM)))
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        writer.write(first_message(user))
        answer = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
    finally:
        writer.close()
    (size,) = struct.unpack_from(">i", answer, 8)
    fields = dict(part.split(b"=", 1) for part in answer[12 : 12 + size].split(b","))
    salt = base64.b64decode(fields[b"s"])
    is_text = salt.isascii() and salt.decode().isalnum() and salt == salt.lower()
    return f"{'text' if is_text else len(salt)}/{fields[b'i'].decode()}"


async def attack(target: AttackedAgent) -> str:
    """Return how many names the classifier gets right; half of them is what guessing gives."""
    told = []
    for tool in ("librdkafka", "kafka-configs.sh"):
        async with AsyncExitStack() as stack:
            # before there is a second agent: an admin client may ask any, and cannot log in there
            await asyncio.to_thread(_make_users, target.bootstrap, tool)
            port = await stack.enter_async_context(_agent_with_sasl(target))
            known = [await shown(port, f"user-{n}") for n in range(_USERS)]
            unknown = [await shown(port, f"nosuch-{n}") for n in range(_USERS)]
            usual = {await shown(port, f"cannot-exist-{n}") for n in range(_USERS)}
        right = sum(each not in usual for each in known) + sum(each in usual for each in unknown)
        told.append(f"{tool}: {right} of {2 * _USERS} names right, known {_counts(known)}, unknown {_counts(unknown)}")
    return "; ".join(told)


def _counts(forms: list[str]) -> str:
    return ",".join(f"{form}x{count}" for form, count in sorted(Counter(forms).items()))


def _make_users(bootstrap: str, tool: str) -> None:
    rng = random.Random(tool)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    salts = [None if tool == "librdkafka" else kafka_salt(rng) for _ in range(_USERS)]
    made = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(f"user-{n}", info, b"pw", salt) for n, salt in enumerate(salts)]
    )
    for each in made.values():
        each.result(_SECONDS_MAX)


@asynccontextmanager
async def _agent_with_sasl(target: AttackedAgent) -> AsyncIterator[int]:
    """Start a second agent of the cluster, where clients log in; its port."""
    (port,) = free_ports(1)
    python = sys.executable if target.checkout is None else str(target.checkout / ".venv/bin/python")
    words = {
        "--http-port": "0",
        "--listeners": f"LOGIN://127.0.0.1:{port}", "--listener-security-protocol-map": "LOGIN:SASL_PLAINTEXT",
        "--log-level": "warning",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "headrace.cli.main", "agent", *target.storage_flags),
        *(word for pair in words.items() for word in pair),
        stdout=asyncio.subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=target.environment,
    )
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("the agent with logins ended before it was ready")
        yield port
    finally:
        process.terminate()
        await process.wait()
