"""What holds for the whole cluster: broker configs set at run time, the agents' shared secret.

Place: background workers, which follow no metadata log, ask for the configs now and then; each agent reads
the secret once, when it starts.
Invariant: only the secret is written here: sealed from the first seal_zone_secret on. The configs are the log's own
projection, written with its records.
"""

from __future__ import annotations

import secrets

from headrace.metastore.api.zone_secret import Rotation, ZoneSecret
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.sealing import KEY_BYTES, Sealing, is_sealed
from headrace.storage.errors import UnavailableError

_CLUSTER_CONFIGS = Statement("cluster_configs", writes=False)
_ZONE_SECRET = Statement("zone_secret", writes=False)
_ROTATE_ZONE_SECRET = Statement("rotate_zone_secret", writes=True)
_SEAL_ZONE_SECRET = Statement("seal_zone_secret", writes=True)


class PostgresClusterFacts(PostgresNoun):
    """Implements what ClusterApi says of configs and of the secret."""

    async def cluster_configs(self) -> dict[str, str]:
        return dict(await _CLUSTER_CONFIGS.rows(self.pool))

    async def zone_secret(self) -> ZoneSecret:
        own, other = await self._stored_secrets()
        return ZoneSecret(self._opened(own), None if other is None else self._opened(other))

    async def rotate_zone_secret(self) -> Rotation:
        new = secrets.token_bytes(KEY_BYTES)
        own, _ = await self._stored_secrets()
        stored = self._sealed(new) if is_sealed(own) else new
        step, waits_for = await _ROTATE_ZONE_SECRET.row(self.pool, new=stored)
        return Rotation(step, tuple(waits_for))

    async def seal_zone_secret(self, *, renew: bool) -> bool:
        before = await self._stored_secrets()
        sealing = Sealing(self.settings.metadata_secret_keys)
        if all(value is None or sealing.is_current(value) for value in before):
            return False
        own, other = (None if value is None else self._sealed(self._opened(value)) for value in before)
        if renew and not is_sealed(before[0]):
            own = self._sealed(secrets.token_bytes(KEY_BYTES))
        (done,) = await _SEAL_ZONE_SECRET.row(
            self.pool, own_before=before[0], own=own, other_before=before[1], other=other
        )
        if not done:
            raise UnavailableError("the zone secret was changed meanwhile: repeat the command")
        return True

    async def _stored_secrets(self) -> tuple[bytes, bytes | None]:
        own, other = await _ZONE_SECRET.row(self.pool)
        return bytes(own), None if other is None else bytes(other)

    def _sealed(self, value: bytes) -> bytes:
        return Sealing(self.settings.metadata_secret_keys).seal(value, "zone", self.cluster_id)

    def _opened(self, stored: bytes) -> bytes:
        if not is_sealed(stored):
            return stored
        return Sealing(self.settings.metadata_secret_keys).open(stored, "zone", self.cluster_id)
