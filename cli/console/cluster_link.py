"""Connections to the cluster for pages: one for each request, with a limit on its time.

Place: under every page; cli/client/ has the requests.
Invariant: a page asks for at most PAGE_SECONDS, and one answer takes at most ANSWER_SECONDS; then UnavailableError. A
cluster that cannot be used, for any reason, is UnavailableError, too: the next request tries again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import ANY, KafkaCluster
from headrace.protocol.client.transport import ClientConfig
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, UnavailableError

PAGE_SECONDS = 10.0
ANSWER_SECONDS = 5.0


class BoundedCluster(KafkaCluster):
    """Refuses to ask after the deadline. `pause` waits for no longer than it."""

    def __init__(self, config: ClientConfig, clock: Clock, seconds: float) -> None:
        super().__init__(config, lambda wanted: asyncio.run(clock.sleep(max(0.0, min(wanted, self.seconds_left)))))
        self._clock = clock
        self._deadline = clock.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds left until the deadline; negative after it."""
        return self._deadline - self._clock.monotonic()

    def ask(self, api_key: ApiKey, request: Any, node_id: int = ANY) -> Any:
        if self.seconds_left <= 0:
            raise UnavailableError("the cluster did not answer in time")
        return super().ask(api_key, request, node_id)

    def _connect(self, node_id: int, address: tuple[str, int]) -> socket.socket:
        if self.seconds_left <= 0:
            raise TimeoutError("no time is left")
        return super()._connect(node_id, address)


class ClusterLink:
    """Opens a BoundedCluster for each page."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        timeout_ms = min(config.request_timeout_ms, int(ANSWER_SECONDS * 1000))
        self._config = dataclasses.replace(config, request_timeout_ms=timeout_ms, client_id="headrace-console")
        self._clock = clock

    @property
    def servers(self) -> str:
        """What is tried, for people."""
        return ", ".join(address_text(host, port) for host, port in self._config.bootstrap_servers)

    @contextmanager
    def opened(self, seconds: float = PAGE_SECONDS) -> Iterator[BoundedCluster]:
        """UnavailableError if no server can be used: away, another protocol, or it refuses the login."""
        cluster = BoundedCluster(self._config, self._clock, seconds)
        try:
            cluster.__enter__()
        except UnavailableError:
            raise
        except (HeadraceError, ConfigError) as error:
            raise UnavailableError(f"the cluster cannot be used: {error}") from error
        try:
            yield cluster
        finally:
            cluster.__exit__(None, None, None)
