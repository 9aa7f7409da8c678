"""A user without any grant makes delegation tokens: 40 with a renewer of 7 MB, and 2,000 ordinary ones.

The user logs in at another agent of the cluster: every agent holds every token. The attacked agent is one that the user
never talks to.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import struct
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from headrace.protocol.client.login import Login
from headrace.protocol.client.transport import ClientConfig, connect, exchange_frame
from load.agent_child import AgentChild
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.typed_frames import frame, part

SETTINGS = {"delegation.token.secret.key": "k" * 32}
USER, PASSWORD = "low", "a password"
_CREATE, _VERSION = 38, 3
RENEWER_CHARACTERS = 7_000_000


def token(renewer: str) -> bytes:
    """A request for one with this renewer."""
    names = (part(_CREATE, _VERSION, "CreatableRenewers", principal_type="User", principal_name=renewer),)
    return frame(
        _CREATE, _VERSION,
        owner_principal_type="User", owner_principal_name=USER, renewers=names,
        max_lifetime=datetime.timedelta(days=7),
    )  # fmt: skip


def long_renewer(number: int) -> str:
    """Text that does not compress."""
    return f"{number:06d}" + "".join(secrets.token_hex(32) for _ in range(RENEWER_CHARACTERS // 64))


async def attack(target: AttackedAgent) -> str:
    """Log in once, then one token after another."""
    return await asyncio.to_thread(_attack, target)


def _attack(target: AttackedAgent) -> str:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": target.bootstrap})  # a variable: without one, it ends before its answer
    admin.alter_user_scram_credentials([user])[USER].result(30)
    settings = SETTINGS | {
        "metastore.url": target.metastore_url,
        **target.storage,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    }
    with TemporaryDirectory() as folder, AgentChild(settings, Path(folder) / "agent.log") as other:
        codes = {"7 MB": _codes(other.kafka, [token(long_renewer(number)) for number in range(40)])}
        codes["ordinary"] = _codes(other.kafka, [token(f"renewer-{number}") for number in range(2_000)])
    return f"tokens by error code: {codes}"


def _codes(kafka: str, frames: list[bytes]) -> dict[str, int]:
    host, _, port = kafka.rpartition(":")
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{USER}" password="{PASSWORD}";',
    }
    address = host, int(port)
    found: Counter[str] = Counter()
    with connect(ClientConfig((address,), login=Login.of(given)), address) as connection:
        for data in frames:
            # kio does not read the times of a token that was refused
            (code,) = struct.unpack_from(">h", exchange_frame(connection, data), 5)
            found[ErrorCode(code).name] += 1
    return dict(found)
