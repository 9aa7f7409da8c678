"""The access handlers of one agent on the metastore in memory."""

from __future__ import annotations

import random
from typing import Any

from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.apis.cluster import ACCESS_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import AccessParts
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.log_change import LogChange
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.sealing import Sealing
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.agent.topics.membership_world import ask, exchange
from tests.manual_clock import ManualClock
from tests.nouns import nouns

SECRET = "what agents share"


class World:
    """`ask` it what a client asks."""

    def __init__(self, clock: ManualClock, settings: Settings | None = None) -> None:
        self.clock = clock
        self.api = FakeClusterApi(clock)
        self.cluster: Cluster = an_agent(self.api)
        self._dispatcher = Dispatcher()
        change = LogChange(self.cluster, nouns(self.api).cluster, clock)
        settings = settings or Settings(delegation_token_secret_key=SECRET)
        sealed_keys = SealedKeys(Sealing(settings.metadata_secret_keys), "cluster")
        self.limits: list[str] = []
        """Limits that refused a request."""
        in_force = SettingsInForce(settings)
        tokens = DelegationTokens(change, random.Random(3), in_force, None, self.limits.append)
        parts = AccessParts(change=change, sealed_keys=sealed_keys, tokens=tokens)
        for api_key, row in ACCESS_ROWS.items():
            self._dispatcher.register(api_key, row.handler(parts))

    async def ask(self, api_key: int, version: int, /, *, principal: str | None = None, **fields: Any) -> Any:
        """The answer as kio reads it."""
        now = self.clock.monotonic()
        return await ask(self._dispatcher, api_key, version, received_at=now, principal=principal, **fields)

    async def exchange(self, api_key: int, version: int, /, *, principal: str | None = None, **fields: Any) -> bytes:
        """The body of the answer as it is sent."""
        now = self.clock.monotonic()
        return await exchange(self._dispatcher, api_key, version, received_at=now, principal=principal, **fields)

    async def image(self) -> MetadataImage:
        return await self.cluster.catch_up()
