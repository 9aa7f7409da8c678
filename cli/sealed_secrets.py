"""`headrace storage seal-secrets`: seal the secrets in the metastore under the first key of metadata.secret.keys.

Place: under cli/storage.py; also the last step of `headrace storage format` for a cluster that begins with a key.
Invariant: the command can be repeated at any time, while agents run. After an interruption the same command continues:
each secret is in clear or sealed, and agents with the key read both. Decision 58.
"""

from __future__ import annotations

from headrace.cli.current_metastore import open_current
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.agents import SEALED_SECRETS
from headrace.metastore.log.loading import load_image
from headrace.metastore.log.own_records import UserScramKeysRecord
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.errors import UnavailableError

ATTEMPTS = 10
"""The metadata log may change between a look at it and the change."""


async def seal_secrets(settings: Settings) -> list[str]:
    """Return what was done, in lines. ConfigError without a key; InvalidError names what has to be done first."""
    sealing = Sealing(settings.metadata_secret_keys)
    if not sealing:
        raise ConfigError("metadata.secret.keys is not set")
    async with open_current(settings) as metastore:
        users, is_new = await _seal_users(metastore, SealedKeys(sealing, metastore.cluster_id))
        zone = await metastore.cluster.seal_zone_secret(renew=is_new)
    return [
        f"{SEALED_SECRETS}=1: agents without metadata.secret.keys cannot start",
        f"users: {users} sealed now",
        f"zone secret: {'sealed now' if zone else 'sealed before'}",
    ]


async def _seal_users(metastore: PostgresMetastore, sealed_keys: SealedKeys) -> tuple[int, bool]:
    """(how many were sealed, whether no agent has ever registered)."""
    for _ in range(ATTEMPTS):
        image = await load_image(metastore.cluster)
        due = sealed_keys.due(image)
        if not due or await metastore.cluster.append_records(image.offset, due):
            users = sum(isinstance(record, UserScramKeysRecord) for record in due)
            return users, not image.agents and not image.unregistered
    raise UnavailableError("the metadata log keeps changing: repeat the command")
