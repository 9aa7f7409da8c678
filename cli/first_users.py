"""`headrace storage format --add-scram`: the users that a new cluster has before its first agent starts.

Place: under cli/storage.py; later users are added with kafka-configs.
Invariant: a user that exists is never changed, so that a repeated command adds the missing ones only. Passwords are
read from files, because every user of the machine sees the arguments of a command.
Source: Kafka's kafka-storage.sh --add-scram.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.log.loading import load_image
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord
from headrace.metastore.log.scram_keys import DIGESTS, MECHANISMS, scram_keys
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.errors import UnavailableError

ITERATIONS = (4_096, 16_384)
"""Kafka's bounds; the lower one is the default."""
_FORM = re.compile(r"(SCRAM-SHA-256|SCRAM-SHA-512)=\[([^\]]*)\]")
_TOLD = "SCRAM-SHA-512=[name=USER,password-file=PATH], with iterations=N if not 4096"


class FirstUser(NamedTuple):
    name: str
    keys: ScramKeys


def parse_user(text: str) -> FirstUser:
    """Parse one --add-scram. ConfigError for anything else, and for a password in the argument."""
    match = _FORM.fullmatch(text)
    given = dict(part.partition("=")[::2] for part in match[2].split(",")) if match else {}
    if "password" in given:
        raise ConfigError("--add-scram: arguments are no place for a password: use password-file=PATH")
    unknown = given.keys() - {"name", "password-file", "iterations"}
    if match is None or unknown or not given.get("name") or not given.get("password-file"):
        raise ConfigError(f"--add-scram: not of the form {_TOLD}")
    iterations = given.get("iterations", str(ITERATIONS[0]))
    if not iterations.isdecimal() or not ITERATIONS[0] <= int(iterations) <= ITERATIONS[1]:
        raise ConfigError(f"--add-scram: iterations: not between {ITERATIONS[0]} and {ITERATIONS[1]}: {iterations}")
    try:
        password = Path(given["password-file"]).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"--add-scram: cannot read: {given['password-file']}: {error.strerror}") from error
    if not password:
        raise ConfigError(f"--add-scram: empty password: {given['password-file']}")
    mechanism, salt = MECHANISMS[match[1]], secrets.token_bytes(32)
    salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, int(iterations))
    return FirstUser(given["name"], scram_keys(mechanism, salt, int(iterations), salted))


async def add_users(settings: Settings, users: Sequence[FirstUser]) -> list[str]:
    """Add those that do not exist; returns a line for each. UnavailableError if the log changed meanwhile."""
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        image = await load_image(metastore.cluster)
        new: dict[str, tuple[ScramKeys, ...]] = {}
        for name, keys in users:
            if name not in image.scram_credentials:
                new[name] = (*new.get(name, ()), keys)
        sealed_keys = SealedKeys(Sealing(settings.metadata_secret_keys), metastore.cluster_id)
        records = [
            UserScramKeysRecord(user_name=name, keys=tuple(sealed_keys.sealed(image, name, each) for each in keys))
            for name, keys in new.items()
        ]
        if records and not await metastore.cluster.append_records(image.offset, records):
            raise UnavailableError("the metadata log changed: repeat the command with --ignore-formatted")
    finally:
        await metastore.close()
    return [f"{'Adding' if name in new else 'Skipping'} user {name}" for name in dict.fromkeys(u.name for u in users)]
